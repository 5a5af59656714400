package client

import (
	"fmt"
	"maps"
	"slices"
)

// Index finds the objects that have a value.
type Index[T any] struct {
	informer *Informer
	index    *index
}

// index is an Index without its type.
type index struct {
	name   string
	values func(spec string) ([]string, error)
	keys   map[string]map[string]struct{} // by value
}

// Index returns an index of the values that a function returns for each object, such as the secrets that a deployment refers to.
// The function must return the same values for the same object. An object that cannot be decoded, or for which the function panics,
// is in no index, and is logged. Call Index before Run of the informer: it panics afterwards.
func (o *Objects[T]) Index(name string, values func(T) []string) *Index[T] {
	i := o.informer
	x := &index{name: name, keys: map[string]map[string]struct{}{}, values: func(spec string) ([]string, error) {
		object, err := decode[T](spec)
		if err != nil {
			return nil, err
		}
		return values(object), nil
	}}
	var problems []string
	if values == nil {
		problems = append(problems, fmt.Sprintf("index %q has no function", name))
	}
	if slices.ContainsFunc(i.indexes[o.resource], func(other *index) bool { return other.name == name }) {
		problems = append(problems, fmt.Sprintf("there are two indexes %q", name))
	}
	i.wire("Index", o.resource, func() { i.indexes[o.resource] = append(i.indexes[o.resource], x) }, problems...)
	return &Index[T]{informer: i, index: x}
}

// Keys returns the keys of the objects that have at least one of the values, in order, each once.
func (x *Index[T]) Keys(values ...string) []string {
	x.informer.mu.RLock()
	defer x.informer.mu.RUnlock()
	found := map[string]struct{}{}
	for _, v := range values {
		maps.Copy(found, x.index.keys[v])
	}
	return slices.Sorted(maps.Keys(found))
}

// reindex is what a change of an object does to an index.
type reindex struct {
	index    *index
	old, now []string
}

// indexed returns what a change does to the indexes of a resource. Old values are computed again, which costs less than keeping them.
func (i *Informer) indexed(r Ref, old, now string) (updates []reindex) {
	if old == now {
		return nil
	}
	for _, x := range i.indexes[r.Resource] {
		updates = append(updates, reindex{x, i.valuesOf(x, r, old, false), i.valuesOf(x, r, now, true)})
	}
	return updates
}

// valuesOf calls the user's function, and contains its panics. Failures are logged when they are new.
func (i *Informer) valuesOf(x *index, r Ref, spec string, logged bool) (values []string) {
	if spec == "" {
		return nil
	}
	err := contained(func() (err error) {
		values, err = x.values(spec)
		return err
	})
	if err == nil {
		return values
	}
	if logged {
		i.client.log.Error("object_not_indexed", "target", i.target, "resource", r.Resource, "key", r.Key, "index", x.name, "error", err.Error())
	}
	return nil
}

// apply updates the index. It needs mu of the informer.
func (u reindex) apply(key string) {
	for _, v := range u.old {
		delete(u.index.keys[v], key)
		if len(u.index.keys[v]) == 0 {
			delete(u.index.keys, v)
		}
	}
	for _, v := range u.now {
		if u.index.keys[v] == nil {
			u.index.keys[v] = map[string]struct{}{}
		}
		u.index.keys[v][key] = struct{}{}
	}
}
