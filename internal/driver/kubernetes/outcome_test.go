package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

func refusal(code int32, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) *fakeapi.Failure {
	return &fakeapi.Failure{Code: int(code), Status: &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
		Details: &metav1.StatusDetails{Name: "a", Kind: "configmaps", Causes: causes},
	}}
}

func TestAnswersAndTheirOutcomes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		failure *fakeapi.Failure
		verdict driver.Verdict
		text    string // below the place
	}{
		{refusal(401, metav1.StatusReasonUnauthorized, "Unauthorized"), driver.VerdictUnreachable, "the cluster refuses the credentials: Unauthorized"},
		{refusal(403, metav1.StatusReasonForbidden, `configmaps "a" is forbidden: User "x" cannot patch resource "configmaps"`), driver.VerdictBackoff,
			`ConfigMap a in NS: configmaps "a" is forbidden: User "x" cannot patch resource "configmaps"`},
		{refusal(403, metav1.StatusReasonForbidden, `configmaps "a" is forbidden: exceeded quota: q`), driver.VerdictBackoff,
			`ConfigMap a in NS: configmaps "a" is forbidden: exceeded quota: q`},
		{refusal(400, metav1.StatusReasonBadRequest, `admission webhook "x" denied the request: no`), driver.VerdictBackoff,
			`ConfigMap a in NS: admission webhook "x" denied the request: no`},
		{refusal(500, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "x"`), driver.VerdictBackoff,
			`ConfigMap a in NS: Internal error occurred: failed calling webhook "x"`},
		{refusal(409, metav1.StatusReasonAlreadyExists, "a exists"), driver.VerdictBackoff, "ConfigMap a in NS: a exists"},
		{refusal(422, metav1.StatusReasonInvalid, "a is invalid: data.x: Required value"), driver.VerdictTerminal, "ConfigMap a in NS: a is invalid: data.x: Required value"},
		{refusal(400, metav1.StatusReasonBadRequest, "strict decoding error"), driver.VerdictTerminal, "ConfigMap a in NS: strict decoding error"},
		{refusal(413, metav1.StatusReasonRequestEntityTooLarge, "Request entity too large"), driver.VerdictTerminal, "ConfigMap a in NS: Request entity too large"},
		{refusal(504, metav1.StatusReasonTimeout, "Timeout"), driver.VerdictBackoff, "ConfigMap a in NS: Timeout"},
		{refusal(503, metav1.StatusReasonServiceUnavailable, "unavailable"), driver.VerdictBackoff, "ConfigMap a in NS: unavailable"},
		{&fakeapi.Failure{Code: 429, Header: http.Header{"Retry-After": {"7"}}}, driver.VerdictRetryAfter, "ConfigMap a in NS: 429 Too Many Requests: Too Many Requests"},
		{refusal(403, metav1.StatusReasonForbidden, "terminating", metav1.StatusCause{Type: "NamespaceTerminating"}), driver.VerdictWaiting,
			"ConfigMap a in NS: the namespace is being deleted"},
	} {
		t.Run(test.text, func(t *testing.T) {
			t.Parallel()
			b := fakeBed(t)
			c := b.open(t, "prod", nil)
			c.done(t, "other", configMap("b", one("1"))) // so that the ApplySet is there
			b.fake.Fail(func(r *http.Request) *fakeapi.Failure {
				if r.Method == http.MethodPatch {
					return test.failure
				}
				return nil
			})
			out := c.apply(t, "web", configMap("a", one("1")))
			requireOut(t, test.verdict, strings.ReplaceAll(test.text, "NS", b.namespace), out)
			if test.failure.Code == http.StatusTooManyRequests {
				require.True(t, out.Whole)
				require.Equal(t, 7*time.Second, out.After)
			}
			b.fake.Fail(nil)
			c.done(t, "web", configMap("a", one("1")))
		})
	}
}

func TestAClusterThatDoesNotAnswerIsUnreachable(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	b.fake.Fail(func(*http.Request) *fakeapi.Failure { return &fakeapi.Failure{Abort: true} })
	require.Equal(t, driver.VerdictUnreachable, c.apply(t, "web", configMap("a", one("2"))).Verdict)
	require.Equal(t, driver.VerdictUnreachable, c.delete(t, "web").Verdict)
	require.Error(t, c.Driver.(driver.Checker).Check(t.Context()))                     //nolint:forcetypeassert // it is one
	for _, err := range c.Driver.(driver.Lister).List(t.Context(), []string{"apps"}) { //nolint:forcetypeassert // it is one
		require.Error(t, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the target was handed over"))
	out := c.Driver.Apply(ctx, driver.Object{Ref: c.ref("web"), Spec: []byte("[]")})
	requireOut(t, driver.VerdictBackoff, "the target was handed over", out)
	b.fake.Fail(nil)
	require.NoError(t, c.Driver.(driver.Checker).Check(t.Context())) //nolint:forcetypeassert // it is one
}

// An aggregated API that is down says nothing about the kinds it serves: its objects are not taken for gone.
func TestAGroupThatDoesNotAnswerIsNotTakenForMissing(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", deployment("web", 1))
	fresh := b.open(t, "prod", nil)
	fresh.memory = c.memory
	b.fake.Fail(func(r *http.Request) *fakeapi.Failure {
		if r.URL.Path == "/apis/apps/v1" {
			return refusal(503, metav1.StatusReasonServiceUnavailable, "unavailable")
		}
		return nil
	})
	out := fresh.delete(t, "web")
	require.Equal(t, driver.VerdictBackoff, out.Verdict, "error: %v", out.Err)
	require.ErrorContains(t, out.Err, "ask the cluster for the kinds in apps/v1: unavailable")
	require.NotNil(t, b.get(t, deployments, b.namespace, "web"))
	b.fake.Fail(nil)
	requireDone(t, b.reopened(t, fresh).delete(t, "web"))
}

// requests returns how many requests of each verb do makes.
func (b *bed) requests(do func()) map[string]int {
	b.fake.ResetRequests()
	do()
	verbs := map[string]int{}
	for _, r := range b.fake.Requests() {
		verbs[r.Verb]++
	}
	return verbs
}

func TestRequestsOfACall(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "first", configMap("first", one("1")))
	require.Equal(t, map[string]int{"PATCH": 1}, b.requests(func() { c.done(t, "web", configMap("a", one("1"))) }), "a new member")
	require.Equal(t, map[string]int{"GET": 1}, b.requests(func() { c.done(t, "web", configMap("a", one("1"))) }), "one that is as it should be")
	require.Equal(t, map[string]int{"PATCH": 1}, b.requests(func() { c.done(t, "web", configMap("a", one("2"))) }), "one that has changed")
	require.Equal(t, map[string]int{"GET": 2, "DELETE": 1}, b.requests(func() { requireDone(t, c.delete(t, "web")) }), "one that goes")
	require.Equal(t, map[string]int{"GET": 2}, b.requests(func() { require.Empty(t, c.drifted(t)) }), "a listing of one kind")
}

// A request may be carried out whose answer is lost: the member is remembered, and removed when the row does not name it any more.
func TestMemberWhoseAnswerWasLostIsRemembered(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	b.fake.Fail(func(r *http.Request) *fakeapi.Failure {
		if r.Method != http.MethodPatch {
			return nil
		}
		b.fake.Fail(nil)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		again := r.Clone(r.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		b.fake.ServeHTTP(httptest.NewRecorder(), again)
		return &fakeapi.Failure{Abort: true}
	})
	require.Equal(t, driver.VerdictUnreachable, c.apply(t, "web", configMap("a", one("1")), configMap("b", one("1"))).Verdict)
	require.Equal(t, one("1"), b.data(t, "b"))
	c.done(t, "web", configMap("a", one("1")))
	require.Nil(t, b.data(t, "b"))
}

// lateContext ends without ending the requests that are on their way: their answers come with its end.
type lateContext struct {
	context.Context

	ended atomic.Bool
}

func (c *lateContext) Err() error {
	if c.ended.Load() {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

func TestCallThatEndsBetweenTwoMembersIsNotDone(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", nil)
	manifests := []any{configMap("a", one("1")), configMap("b", one("1"))}
	spec, err := json.Marshal(manifests)
	require.NoError(t, err)
	var late *lateContext
	deleted := false
	b.fake.Fail(func(r *http.Request) *fakeapi.Failure {
		switch {
		case late == nil || !strings.Contains(r.URL.Path, "/configmaps/"):
		case r.Method == http.MethodDelete:
			deleted = true // the next request looks whether it is gone
		case r.Method == http.MethodPatch || deleted:
			late.ended.Store(true)
		}
		return nil
	})
	c.done(t, "other", configMap("c", one("1"))) // it creates the ApplySet

	late = &lateContext{Context: t.Context()}
	out := c.Driver.Apply(late, driver.Object{Ref: c.ref("web"), Spec: spec, Hash: driver.HashSpec(spec)})
	requireOut(t, driver.VerdictBackoff, context.DeadlineExceeded.Error(), out)
	require.Equal(t, []any{one("1"), map[string]any(nil)}, []any{b.data(t, "a"), b.data(t, "b")})
	c.memory["web"], late = out.Memory, nil
	c.done(t, "web", manifests...)
	require.Equal(t, one("1"), b.data(t, "b"))

	late = &lateContext{Context: t.Context()}
	requireOut(t, driver.VerdictBackoff, context.DeadlineExceeded.Error(), c.Driver.Delete(late, c.ref("web")))
	require.Equal(t, []any{one("1"), map[string]any(nil)}, []any{b.data(t, "a"), b.data(t, "b")})
	late = nil
	requireDone(t, c.delete(t, "web"))
	require.Nil(t, b.data(t, "a"))
}

// A typing error in a kind costs one request a second, whatever the number of rows.
func TestUnknownKindsAreLookedUpOnceASecond(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", nil)
	wrong := map[string]any{"apiVersion": "v1", "kind": "ConfigMop", "metadata": map[string]any{"name": "a"}}
	c.apply(t, "web", wrong)
	began := time.Now()
	n := b.requests(func() {
		for range 50 {
			require.Equal(t, driver.VerdictWaiting, c.apply(t, "web", wrong).Verdict)
		}
	})["GET"]
	require.LessOrEqual(t, n, 1+int(time.Since(began)/discoverEvery))
}

func TestAWaitGrowsAndBecomesAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := waits{since: map[string]wait{}}
		var total time.Duration
		for total <= missingMost {
			out := w.on("x", "there is no namespace", missingMost)
			requireOut(t, driver.VerdictWaiting, "there is no namespace", out)
			require.GreaterOrEqual(t, out.After, waitLeast)
			require.LessOrEqual(t, out.After, waitMost)
			time.Sleep(out.After)
			total += out.After
		}
		requireOut(t, driver.VerdictBackoff, "there is no namespace, for 5m0s now", w.on("x", "there is no namespace", missingMost))
		requireOut(t, driver.VerdictWaiting, "it is being deleted", w.on("x", "it is being deleted", 0))
		w.over("x")
		requireOut(t, driver.VerdictWaiting, "there is no namespace", w.on("x", "there is no namespace", missingMost))
		time.Sleep(2 * waitsForget)
		w.on("y", "another", 0)
		require.Len(t, w.since, 1, "a wait that no call asks for is forgotten")
	})
}

// The ledger keeps an error for each failing object.
func TestErrorsAreShortAndOneLine(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", nil)
	b.fake.Admit(func(*unstructured.Unstructured) error { return errors.New(strings.Repeat("long\n", 10_000) + "fake") })
	out := c.apply(t, "web", configMap("a", one("1")))
	require.Less(t, len(out.Err.Error()), 2*errorShownMost)
	require.NotContains(t, out.Err.Error(), "\n")
}
