package drivertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
)

// differing is a target in memory that can say what a call would change. It keeps the field password secret.
type differing struct {
	*memory

	away bool // guarded by memory.mu
}

// asked returns why a look is not made.
func (d *differing) asked(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.away && d.is("a diff of a target that is away is answered from memory"):
		return nil
	case d.away:
		return errors.New("no answer")
	case ctx.Err() != nil && !d.is("cut diffs are empty"):
		return context.Cause(ctx)
	}
	return nil
}

func (d *differing) Diff(ctx context.Context, obj driver.Object) ([]driver.Change, error) {
	if err := d.asked(ctx); err != nil {
		if d.is("a diff that failed has changes") {
			return []driver.Change{{Note: "not known"}}, err
		}
		return nil, err
	}
	if d.is("a diff applies") {
		d.Apply(ctx, obj)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	before, exists := d.objects[d.place(obj.Ref)]
	switch {
	case !exists && d.is("a diff takes absent objects for equal"):
		return nil, nil
	case !exists:
		return []driver.Change{{To: d.shown("", json.RawMessage(obj.Spec))}}, nil
	case d.is("a diff shows the whole object"):
		return []driver.Change{{From: before, To: string(obj.Spec)}}, nil
	case d.is("a diff remembers what was applied") && strings.HasPrefix(before, `{"touched"`):
		return nil, nil
	}
	return d.fields(before, string(obj.Spec)), nil
}

// fields compares objects field by field.
func (d *differing) fields(before, after string) (changes []driver.Change) {
	from, to := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if json.Unmarshal([]byte(before), &from) != nil || json.Unmarshal([]byte(after), &to) != nil {
		return []driver.Change{{From: before, To: after}}
	}
	for field := range from {
		if _, kept := to[field]; !kept {
			changes = append(changes, driver.Change{Field: field, From: d.shown(field, from[field])})
		}
	}
	for field := range to {
		if string(from[field]) != string(to[field]) || d.is("a diff shows equal fields") {
			changes = append(changes, driver.Change{Field: field, From: d.shown(field, from[field]), To: d.shown(field, to[field])})
		}
	}
	return changes
}

// shown is a value, or that it is hidden.
func (d *differing) shown(field string, value json.RawMessage) string {
	if (field == "password" || strings.Contains(string(value), `"password"`)) && !d.is("a diff shows secrets") {
		return `"(hidden)"`
	}
	return string(value)
}

func (d *differing) DiffDelete(ctx context.Context, ref driver.Ref) ([]driver.Change, error) {
	if err := d.asked(ctx); err != nil {
		return nil, err
	}
	if d.is("a diff deletes") {
		d.Delete(ctx, ref)
		return []driver.Change{{From: `{}`}}, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	before, exists := d.objects[d.place(ref)]
	if d.is("a diff of a delete is empty") || !exists && !d.is("a diff deletes what is absent") {
		return nil, nil
	}
	return []driver.Change{{From: d.shown("", json.RawMessage(before+" "))}}, nil
}

func (m *memory) differingFixture(t *testing.T) drivertest.Fixture {
	t.Helper()
	d := &differing{memory: m}
	f := m.fixture(t)
	f.Driver = d
	f.Hide = func(_, _, secret string) string { return `{"password": "` + secret + `"}` }
	f.Away = func(*testing.T) func() {
		away := func(is bool) {
			m.mu.Lock()
			defer m.mu.Unlock()
			d.away = is
		}
		away(true)
		return func() { away(false) }
	}
	return f
}
