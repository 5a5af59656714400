package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Action is what a call asks for, as programs and webhooks read it.
type Action string

// The actions of a message.
const (
	ActionApply  Action = "apply"
	ActionDelete Action = "delete"
)

// message is the JSON that webhook and exec send. Its fields are part of the product's contract.
type message struct {
	Action   Action `json:"action"`
	Target   string `json:"target"`
	Resource string `json:"resource"`
	Key      string `json:"key"`
	Revision int64  `json:"revision"`
	Term     int64  `json:"term"`
	Hash     string `json:"hash,omitempty"`
}

// ApplyMessage is the JSON text that asks for the object:
//
//	{"action":"apply","target":..,"resource":..,"key":..,"revision":..,"term":..,"hash":..,"spec":..}
//
// hash is Hash.String, and spec stands there byte for byte. An error means that the object cannot be written
// as JSON without changing its name.
func ApplyMessage(obj Object) ([]byte, error) {
	if !json.Valid(obj.Spec) {
		return nil, errors.New("the spec is not valid JSON")
	}
	head, err := encodeMessage(ActionApply, obj.Ref, obj.Hash.String())
	if err != nil {
		return nil, err
	}
	// Put together by hand: encoding/json would rewrite the spec, and its hash would no longer fit.
	body := make([]byte, 0, len(head)+len(obj.Spec)+len(`,"spec":}`))
	body = append(body, head[:len(head)-1]...)
	body = append(body, `,"spec":`...)
	body = append(body, obj.Spec...)
	return append(body, '}'), nil
}

// DeleteMessage is ApplyMessage for an object that shall be absent: action "delete", no hash, no spec.
func DeleteMessage(ref Ref) ([]byte, error) {
	return encodeMessage(ActionDelete, ref, "")
}

func encodeMessage(action Action, ref Ref, hash string) ([]byte, error) {
	// encoding/json puts U+FFFD for what is not UTF-8: two objects would share a name.
	for _, name := range []string{ref.Target, ref.Resource, ref.Key} {
		if !utf8.ValidString(name) {
			return nil, fmt.Errorf("the name %q is not valid UTF-8", name)
		}
	}
	return json.Marshal(message{
		Action: action, Target: ref.Target, Resource: ref.Resource, Key: ref.Key,
		Revision: ref.Revision, Term: ref.Term, Hash: hash,
	})
}
