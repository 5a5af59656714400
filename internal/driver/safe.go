package driver

import (
	"context"
	"fmt"
	"iter"
	"runtime/debug"
	"strings"
	"time"
)

// PanicError is a panic of a driver. A driver that panics fails in what it was asked for and ends nothing else.
type PanicError struct {
	Value any
	Stack string
}

// Panicked returns the error for what recover returned. It is called by the function that recovers.
func Panicked(value any) *PanicError { return &PanicError{Value: value, Stack: string(debug.Stack())} }

func (e *PanicError) Error() string { return e.Short() + "\n" + e.Stack }

// Short is the error without its stack.
func (e *PanicError) Short() string {
	text, _, _ := strings.Cut(fmt.Sprint(e.Value), "\n")
	return "the driver panicked: " + text
}

// Safely calls a method of a driver. A panic is an error.
func Safely(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Panicked(p)
		}
	}()
	return call()
}

// ContestedBy returns how many objects a driver lets be; 0 for one that is not Contested.
func ContestedBy(d Driver) (n int) {
	if contested, ok := d.(Contested); ok {
		_ = Safely(func() error { n = contested.Contested(); return nil }) // its Trouble panics, too
	}
	return n
}

// listSilence bounds how long a listing is waited for to name one more object: its target may have fallen silent for good.
const listSilence = 15 * time.Minute

// List is what l lists. A panic of the driver ends the sequence with an error; one of the loop's body goes on. A listing that names no
// object for a quarter of an hour has its context cancelled.
func List(ctx context.Context, l Lister, resources []string) iter.Seq2[Listed, error] {
	return func(yield func(Listed, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		silence := time.AfterFunc(listSilence, func() { cancel(fmt.Errorf("it named no object for %s", listSilence)) })
		defer silence.Stop()
		body, left := false, false
		defer func() {
			if body {
				return
			}
			if p := recover(); p != nil && !left {
				yield(Listed{}, Panicked(p))
			}
		}()
		for one, err := range l.List(ctx, resources) {
			silence.Stop()
			body = true
			left = !yield(one, err)
			if body = false; left {
				return
			}
			silence.Reset(listSilence)
		}
	}
}

// EachResource returns the listing of several resources by a driver that lists them one by one. The first error ends it.
func EachResource(resources []string, list func(resource string) iter.Seq2[Listed, error]) iter.Seq2[Listed, error] {
	return func(yield func(Listed, error) bool) {
		for _, resource := range resources {
			for one, err := range list(resource) {
				if !yield(one, err) || err != nil {
					return
				}
			}
		}
	}
}
