package client

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
)

// Objects are the objects of one resource. Each call decodes them anew, so that you may change what you get.
type Objects[T any] struct {
	informer *Informer
	resource string
}

// For returns the objects of a resource, decoded into T as encoding/json does.
func For[T any](i *Informer, resource string) *Objects[T] {
	i.wire(wireFor, resource, func() {})
	return &Objects[T]{informer: i, resource: resource}
}

// Get returns an object, and false if there is none. Before the informer is synced that proves nothing. It returns an error if the
// object cannot be decoded.
func (o *Objects[T]) Get(key string) (object T, found bool, err error) {
	o.informer.mu.RLock()
	spec := o.informer.seen(Ref{o.resource, key}).spec
	o.informer.mu.RUnlock()
	if spec == "" {
		return object, false, nil
	}
	object, err = decode[T](spec)
	if err != nil {
		return object, true, fmt.Errorf("decode %s %q of target %s: %w", o.resource, key, o.informer.target, err)
	}
	return object, true, nil
}

// Object returns an object as the server sent it, with its Spec, Version and Hash, and false if there is none. Before the informer is
// synced that proves nothing.
func (i *Informer) Object(resource, key string) (Object, bool) {
	i.mu.RLock()
	e := i.seen(Ref{resource, key})
	i.mu.RUnlock()
	if e.spec == "" {
		return Object{}, false
	}
	hash := sha256.Sum256([]byte(e.spec)) // which costs less than keeping it
	return Object{
		Resource: resource, Key: key, Version: e.version, Hash: hex.EncodeToString(hash[:16]), Spec: json.RawMessage(e.spec),
	}, true
}

// Absent reports whether it is known that no row wants an object: the server has deleted it, or has brought the objects up to date since Run
// began and did not name it. An object that the far side must keep, or whose delete waits for approval, is not known to be absent.
func (i *Informer) Absent(resource, key string) bool {
	r := Ref{resource, key}
	i.mu.RLock()
	defer i.mu.RUnlock()
	if _, kept := i.kept[r]; kept || i.seen(r).spec != "" || i.cache.get(r).spec != "" {
		return false
	}
	if gone, ok := i.tombstones[r]; ok {
		return !gone.held
	}
	return i.confirmed && !i.snapshot
}

// Resources returns the resources of which there is an object or an outstanding delete, in order.
func (i *Informer) Resources() []string {
	i.mu.RLock()
	defer i.mu.RUnlock()
	found := map[string]struct{}{}
	for resource, objects := range i.cache.objects {
		if len(objects) > 0 {
			found[resource] = struct{}{}
		}
	}
	for r := range i.tombstones {
		found[r.Resource] = struct{}{}
	}
	return slices.Sorted(maps.Keys(found))
}

// All yields the objects in the order of their keys, without those that cannot be decoded.
func (o *Objects[T]) All() iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		o.informer.mu.RLock()
		keys := slices.Sorted(maps.Keys(o.informer.cache.objects[o.resource]))
		o.informer.mu.RUnlock()
		for _, key := range keys {
			object, found, err := o.Get(key)
			if found && err == nil && !yield(key, object) {
				return
			}
		}
	}
}

func decode[T any](spec string) (object T, err error) {
	if err = json.Unmarshal([]byte(spec), &object); err != nil {
		var zero T
		return zero, err
	}
	return object, nil
}
