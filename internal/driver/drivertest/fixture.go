package drivertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	// callTimeout is far more than any call needs: reaching it is a failure.
	callTimeout = 30 * time.Second
	// errorBytesMax is what an error may have: it is kept in the ledger for each failing object.
	errorBytesMax = 4 << 10
)

// Fixture is a driver with a new, empty target of its own, and the means to look at that target independently.
type Fixture struct {
	Driver driver.Driver
	Target string // the name that the driver was opened with

	// Read returns what the target really has for an object. It must not go through the driver.
	Read func(t *testing.T, resource, key string) (content string, ok bool)
	// Count returns how many objects the target really has, those of unexpected names included.
	Count func(t *testing.T) int
	// RawText says that the target keeps the text of a spec that is a JSON string, and not the JSON.
	RawText bool
	// Refuses says of which resources and keys the driver may say that they can never be applied; nil for none.
	Refuses func(name string) bool
	// Confirm has the target confirm what it was asked last for an object. Only for drivers that return driver.Waiting; nil: the
	// driver may not.
	Confirm func(t *testing.T, resource, key string)
	// Touch changes an object that was applied behind the driver's back, to another content than before with each call. Only for a
	// driver.Watcher.
	Touch func(t *testing.T, resource, key string)
	// Break has an object fail in the target, so that an ObjectHealthReporter must not call it healthy. Nil: objects cannot fail there.
	Break func(t *testing.T, resource, key string)
	// Hide makes a spec of a secret value that the target keeps secret, so that a Differ must not show it. Nil: it keeps none.
	Hide func(resource, key, secret string) string
	// Away has the target answer nothing until the function that it returns is called. Only for a Differ; nil: that cannot be staged.
	Away func(t *testing.T) (back func())
	// Guard returns a spec for the driver that holds spec, as that of Wrap does, and a part that the driver removes only with approval.
	// Nil: the driver asks for no approval.
	Guard func(resource, key, spec string) string
	// Intact, if set, fails the test if anything outside the target was touched.
	Intact func(t *testing.T)
	// Secrets are values that the driver was given and that must not stand in any outcome.
	Secrets []string
	// Wrap makes what the driver is given of a spec, in PostgreSQL's text form, for a driver that takes only some: an object that holds
	// the spec. Read returns the spec itself. Nil: specs go as they are.
	Wrap func(resource, key, spec string) string
	// SpecMost is how many bytes a spec may have, before Wrap, that the target can hold. 0: there is no limit.
	SpecMost int
}

// bench is a fixture in use: it makes the calls and holds every outcome against the contract.
type bench struct {
	Fixture
	revision atomic.Int64

	mu       sync.Mutex           // guards memories
	memories map[[2]string][]byte // by resource and key
}

func setup(t *testing.T, newFixture func(t *testing.T) Fixture) *bench {
	t.Helper()
	b := &bench{Fixture: newFixture(t), memories: map[[2]string][]byte{}}
	t.Cleanup(func() {
		// The test's own context has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		require.NoError(t, b.Driver.Close(ctx))
	})
	return b
}

func (b *bench) ref(resource, key string) driver.Ref {
	return driver.Ref{Target: b.Target, Resource: resource, Key: key, Revision: b.revision.Add(1), Term: 1}
}

func (b *bench) object(resource, key, spec string) driver.Object {
	if b.Wrap != nil {
		spec = b.Wrap(resource, key, spec)
	}
	return driver.Object{
		Ref: b.ref(resource, key), Spec: json.RawMessage(spec), Hash: driver.HashSpec([]byte(spec)),
	}
}

func (b *bench) apply(t *testing.T, resource, key, spec string) driver.Outcome {
	t.Helper()
	return b.applyObject(t, t.Context(), b.object(resource, key, spec))
}

func (b *bench) applyObject(t *testing.T, ctx context.Context, obj driver.Object) driver.Outcome {
	t.Helper()
	return b.call(t, ctx, func(ctx context.Context) driver.Outcome { return b.applyNow(ctx, obj) })
}

func (b *bench) delete(t *testing.T, resource, key string) driver.Outcome {
	t.Helper()
	return b.deleteRef(t, t.Context(), b.ref(resource, key))
}

func (b *bench) deleteRef(t *testing.T, ctx context.Context, ref driver.Ref) driver.Outcome {
	t.Helper()
	return b.call(t, ctx, func(ctx context.Context) driver.Outcome { return b.deleteNow(ctx, ref) })
}

// call makes one call, which must return by itself, and holds its outcome against the contract.
func (b *bench) call(t *testing.T, ctx context.Context, do func(context.Context) driver.Outcome) driver.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	outcome := do(ctx)
	if err := b.outcomeError(outcome); err != nil {
		t.Fatal(err)
	}
	return outcome
}

// outcomeError says what about the outcome breaks the contract, whatever the call was.
func (b *bench) outcomeError(o driver.Outcome) error {
	switch {
	case o.Verdict < driver.VerdictDone || o.Verdict > driver.VerdictUnapproved:
		return fmt.Errorf("an outcome of an unknown verdict: %s", o.Verdict)
	case o.Verdict == driver.VerdictUnapproved && b.Guard == nil:
		return fmt.Errorf("an outcome that asks for approval, of a driver that guards nothing: %w", o.Err)
	case o.Verdict == driver.VerdictWaiting && b.Confirm == nil:
		return fmt.Errorf("an outcome that waits, of a driver whose target confirms nothing: %w", o.Err)
	case len(o.Memory) > driver.MemoryMost:
		return fmt.Errorf("an outcome with a memory of %d bytes; the most is %d", len(o.Memory), driver.MemoryMost)
	case b.holdsSecret(string(o.Memory)):
		return errors.New("an outcome with a memory that holds a secret")
	case o.Verdict == driver.VerdictDone && o.Err != nil:
		return fmt.Errorf("an outcome that is done, with an error: %w", o.Err)
	case o.Verdict == driver.VerdictDone:
		return nil
	case o.Err == nil:
		return fmt.Errorf("an outcome that is %s, without an error", o.Verdict)
	}
	text := o.Err.Error()
	if b.holdsSecret(text) {
		for _, secret := range b.Secrets {
			text = strings.ReplaceAll(text, secret, "[secret]")
		}
		return fmt.Errorf("an error that holds a secret: %s", text)
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) || len(text) > errorBytesMax {
		return fmt.Errorf("an error that PostgreSQL would not store, or of more than %d bytes: %.200q", errorBytesMax, text)
	}
	return nil
}

func (b *bench) holdsSecret(text string) bool {
	return slices.ContainsFunc(b.Secrets, func(secret string) bool { return strings.Contains(text, secret) })
}

func (b *bench) requireDone(t *testing.T, o driver.Outcome) {
	t.Helper()
	require.Equal(t, driver.VerdictDone, o.Verdict, "error: %v", o.Err)
}

// requireHas fails unless the target really has the object with exactly this spec.
func (b *bench) requireHas(t *testing.T, resource, key, spec string) {
	t.Helper()
	content, ok := b.Read(t, resource, key)
	require.True(t, ok, "the target does not have %q of %q", key, resource)
	text, isText, err := driver.SpecText(json.RawMessage(spec))
	require.NoError(t, err)
	if b.RawText && isText {
		require.Equal(t, text, content)
		return
	}
	require.True(t, sameJSON(t, spec, content), "want %.300s\nhave %.300s", spec, content)
}

func (b *bench) requireAbsent(t *testing.T, resource, key string) {
	t.Helper()
	content, ok := b.Read(t, resource, key)
	require.False(t, ok, "the target still has %q of %q: %.300s", key, resource, content)
}

// mayRefuse says that a Terminal outcome is a fair answer to this name.
func (b *bench) mayRefuse(names ...string) bool {
	for _, name := range names {
		if b.Refuses != nil && b.Refuses(name) {
			return true
		}
	}
	return false
}

// sameJSON compares values and keeps every digit of numbers.
func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	return reflect.DeepEqual(decode(t, a), decode(t, b))
}

func decode(t *testing.T, text string) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var value any
	require.NoError(t, d.Decode(&value), "content: %.300q", text)
	return value
}
