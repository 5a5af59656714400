package kubernetes

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

const (
	secretText   = "hunter2hunter2"
	secretBase64 = "aHVudGVyMmh1bnRlcjI="
	secretNumber = 1234567890123
)

// malformed are Secrets that the driver or the cluster refuses, and the errors below their places.
var malformed = []struct {
	name   string
	fields map[string]any
	text   string
}{
	{"ANumberInData", map[string]any{"data": map[string]any{"x": secretNumber}}, "Secret a: data.x must be text"},
	{"PlainTextInData", map[string]any{"data": map[string]any{"x": secretText}}, "Secret a: data.x must be base64 (stringData takes plain text)"},
	{"ANumberInStringData", map[string]any{"stringData": map[string]any{"x": secretNumber}}, "Secret a: stringData.x must be text"},
	{"AListOfValues", map[string]any{"data": []any{secretText, secretBase64}}, "Secret a: data must map names to texts"},
	{"ATextOfValues", map[string]any{"stringData": secretText}, "Secret a: stringData must map names to texts"},
	{"AnUnknownField", map[string]any{"passwords": map[string]any{"x": secretText, "y": secretNumber}},
		"Secret a in NS: the cluster refuses it (500 Internal Server Error): passwords: unknown, or of another type"},
	{"AWrongType", map[string]any{"immutable": secretText},
		"Secret a in NS: the cluster refuses it (500 Internal Server Error): immutable: unknown, or of another type"},
	{"AnInvalidLabel", map[string]any{"metadata": map[string]any{"name": "a", "labels": map[string]any{"x": secretText + "!"}}},
		"Secret a in NS: the cluster refuses it (Invalid): metadata.labels: FieldValueInvalid"},
}

// withholding returns a driver whose log is kept, and a function that fails if a value of a Secret stands in the log or in something else.
func withholding(t *testing.T, b *bed) (c *caller, check func(what ...any)) {
	t.Helper()
	var log bytes.Buffer
	all := driver.Options{"kubeconfig": b.kubeconfig, "namespace": b.namespace}
	d, err := Kind().Open("prod", all, driver.Env{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(t.Context())) })
	return &caller{Driver: d, target: "prod", memory: map[string][]byte{}}, func(what ...any) {
		t.Helper()
		texts, err := json.Marshal(what)
		require.NoError(t, err)
		for _, value := range []string{secretText, secretBase64, "1234567890123"} {
			require.NotContains(t, string(texts)+log.String(), value)
		}
	}
}

// outputs applies and compares an object, and returns the error and everything that others may read of it.
func (c *caller) outputs(t *testing.T, manifest any) (driver.Outcome, []any) {
	t.Helper()
	spec, err := json.Marshal([]any{manifest})
	require.NoError(t, err)
	changes, err := c.Driver.(driver.Differ).Diff(t.Context(), driver.Object{Ref: c.ref("web"), Spec: spec, Hash: driver.HashSpec(spec)})
	all := []any{lines(changes), textOf(err)}
	out := c.apply(t, "web", manifest)
	return out, append(all, textOf(out.Err), string(out.Memory), string(c.memory["web"]))
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestF169_NoErrorLogOrDiffHasAValueOfAMalformedSecret(t *testing.T) {
	t.Parallel()
	for _, test := range malformed {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			c, check := withholding(t, b)
			out, all := c.outputs(t, secret("a", test.fields))
			requireOut(t, driver.VerdictTerminal, strings.ReplaceAll(test.text, "NS", b.namespace), out)
			check(all...)
		})
	}
}

// Servers, webhooks and proxies repeat what they refuse.
func TestF169_NoErrorLogOrDiffHasAValueThatAServerRepeats(t *testing.T) {
	t.Parallel()
	const withheld = "; its message may have values of the Secret, and is not shown"
	said := " " + secretText + " " + secretBase64
	for _, test := range []struct {
		failure *fakeapi.Failure
		verdict driver.Verdict
		text    string
	}{
		{refusal(422, metav1.StatusReasonInvalid, `Secret "a" is invalid: data[x]: Invalid value:`+said,
			metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "data[x]", Message: "Invalid value:" + said}),
			driver.VerdictTerminal, "the cluster refuses it (Invalid): data[x]: FieldValueInvalid"},
		{refusal(500, "", "failed to create typed patch object (NS/a; /v1, Kind=Secret): .data.x: expected string, got &value.valueUnstructured{Value:1234567890123}"),
			driver.VerdictTerminal, "the cluster refuses it (500 Internal Server Error): data.x: unknown, or of another type"},
		{refusal(500, "", "failed to convert new object (NS/a; /v1, Kind=Secret) to proper version: illegal base64 data at input byte 4:"+said),
			driver.VerdictTerminal, "the cluster refuses it (500 Internal Server Error)" + withheld},
		{refusal(400, metav1.StatusReasonBadRequest, `admission webhook "x" denied the request: weak:`+said),
			driver.VerdictBackoff, "the cluster refuses it (BadRequest)" + withheld},
		{refusal(403, metav1.StatusReasonForbidden, `secrets "a" is forbidden: ValidatingAdmissionPolicy 'x' denied request:`+said),
			driver.VerdictBackoff, "the cluster refuses it (Forbidden)" + withheld},
		{refusal(403, metav1.StatusReasonForbidden, `secrets "a" is forbidden: User "x" cannot patch resource "secrets" in API group "" in the namespace "NS":`+said),
			driver.VerdictBackoff, `secrets "a" is forbidden: User "x" cannot patch resource "secrets" in API group "" in the namespace "NS"`},
		{refusal(500, metav1.StatusReasonInternalError, "Internal error occurred:"+said), driver.VerdictBackoff, "the cluster refuses it (InternalError)" + withheld},
		{refusal(500, "", ""), driver.VerdictBackoff, "the cluster refuses it (500 Internal Server Error)" + withheld},
		{&fakeapi.Failure{Code: 502, Text: "<html>" + said}, driver.VerdictBackoff, "the cluster refuses it (InternalError)" + withheld},
		{&fakeapi.Failure{Code: 429, Text: "weak:" + said}, driver.VerdictRetryAfter, "429 Too Many Requests"},
	} {
		t.Run(test.text, func(t *testing.T) {
			t.Parallel()
			b := fakeBed(t)
			c, check := withholding(t, b)
			c.done(t, "other", secret("b", nil)) // so that the ApplySet is there
			b.fake.Fail(func(r *http.Request) *fakeapi.Failure {
				if r.Method == http.MethodPatch {
					return test.failure
				}
				return nil
			})
			out, all := c.outputs(t, secret("a", map[string]any{"stringData": map[string]any{"x": secretText}}))
			requireOut(t, test.verdict, "Secret a in "+b.namespace+": "+test.text, out)
			check(all...)
		})
	}
}

// What the spec makes first cannot be asked of the cluster: the manifest is shown as it stands.
func TestF169_DiffShowsNoValueOfASecretThatNoDryRunKnows(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c, check := withholding(t, b)
	name := b.namespace + "-more"
	inside := within(name, secret("a", map[string]any{"stringData": map[string]any{"x": secretText}}))
	changes := c.diff(t, "web", namespace(name), inside)
	require.Len(t, changes, 2)
	require.Contains(t, changes[1], `"data":{"x":"(hidden)"}`)
	unknown := &unstructured.Unstructured{Object: secret("a", map[string]any{"passwords": []any{secretText}})}
	shown := visible(place{GroupKind: secretKind, Name: "a"}, unknown)
	require.Equal(t, hidden{[]any{secretText}}, shown["passwords"])
	check(changes, shown)
}
