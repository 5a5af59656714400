package driver_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func TestApplyMessageKeepsTheSpecByteForByte(t *testing.T) {
	t.Parallel()

	spec := json.RawMessage(`{"b": "<&>", "a":  1.50}`)
	body, err := driver.ApplyMessage(driver.Object{
		Ref:  driver.Ref{Target: "eu", Resource: "apps", Key: "a \"b\"\n", Revision: 7, Term: 2},
		Spec: spec, Hash: driver.HashSpec(spec),
	})
	require.NoError(t, err)
	require.Equal(t, `{"action":"apply","target":"eu","resource":"apps","key":"a \"b\"\n","revision":7,"term":2,`+
		`"hash":"`+driver.HashSpec(spec).String()+`","spec":{"b": "<&>", "a":  1.50}}`, string(body))
	require.True(t, json.Valid(body))
}

func TestDeleteMessageHasNoSpec(t *testing.T) {
	t.Parallel()

	body, err := driver.DeleteMessage(driver.Ref{Target: "eu", Resource: "apps", Key: "k"})
	require.NoError(t, err)
	require.Equal(t, `{"action":"delete","target":"eu","resource":"apps","key":"k","revision":0,"term":0}`, string(body))
}

func TestMessageRefusesWhatJSONCannotSay(t *testing.T) {
	t.Parallel()

	_, err := driver.DeleteMessage(driver.Ref{Target: "eu", Resource: "apps", Key: "a\xff"})
	require.EqualError(t, err, `the name "a\xff" is not valid UTF-8`)
	_, err = driver.ApplyMessage(driver.Object{Ref: driver.Ref{Resource: "\xff"}, Spec: json.RawMessage(`1`)})
	require.EqualError(t, err, `the name "\xff" is not valid UTF-8`)
	_, err = driver.ApplyMessage(driver.Object{Spec: json.RawMessage(`{"a":1},"key":"other"`)})
	require.EqualError(t, err, "the spec is not valid JSON")
}
