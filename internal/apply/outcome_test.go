package apply

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// jitter is how far a pause strays, either way.
const jitter = 0.2

var testBackoff = throttle.Backoff{Min: time.Second, Max: time.Minute}

// C26: what the ledger says after a call: state, attempts, next attempt and message, and success resets them.
func TestOutcomeOfAnApply(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	failed := func(change func(*record)) *record {
		r := &record{
			state: desired.Failing, wanted: true, present: true, desiredRevision: 7, failedHash: specHash[:], attempts: 1, err: "refused",
			called: true, delay: 1,
		}
		change(r)
		return r
	}
	done := &record{
		state: desired.Applied, wanted: true, present: true, desiredRevision: 7, appliedRevision: 9, appliedHash: specHash[:], called: true, delay: -1,
	}
	for name, c := range map[string]struct {
		before string
		out    driver.Outcome
		want   *record
	}{
		"DoneFirst":             {"unknown", driver.Done(), done},
		"DoneAfterFailures":     {"failing, due", driver.Done(), done},
		"DoneAfterBlock":        {"blocked, other", driver.Done(), done},
		"DoneAfterApproval":     {"approved delete", driver.Done(), done},
		"FailedFirst":           {"unknown", driver.Backoff(refused), failed(func(*record) {})},
		"FailedAgain":           {"failing, due", driver.Backoff(refused), failed(func(r *record) { r.attempts, r.delay = 4, 8 })},
		"FailedWithAnotherSpec": {"failing, other", driver.Backoff(refused), failed(func(*record) {})},
		"FailedAfterItWasThere": {"applied, other", driver.Backoff(refused), failed(func(*record) {})},
		"FailedAfterDeletes":    {"delete, due", driver.Backoff(refused), failed(func(*record) {})},
		"Terminal":              {"unknown", driver.Terminal(refused), failed(func(r *record) { r.state, r.delay = desired.Blocked, -1 })},
		"RetryAfter":            {"unknown", driver.RetryAfter(time.Hour, refused), failed(func(r *record) { r.delay = 3600 })},
		"RetryAfterNothing":     {"failing, due", driver.RetryAfter(0, refused), failed(func(r *record) { r.attempts = 4 })},
		"WaitingFirst":          {"unknown", driver.Waiting(time.Minute, "refused"), failed(func(r *record) { r.state, r.attempts, r.delay = desired.Pending, 0, 60 })},
		"WaitingAfterFailures":  {"failing, due", driver.Waiting(time.Minute, "refused"), failed(func(r *record) { r.state, r.attempts, r.delay = desired.Pending, 3, 60 })},
		"WaitingWithAnotherSpec": {
			"failing, other", driver.Waiting(0, "refused"), failed(func(r *record) { r.state, r.attempts, r.delay = desired.Pending, 0, 0.1 }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireRecord(t, c.want, testLook(wantedRow(), c.before, "plain").outcome(actApply, c.out, testBackoff))
		})
	}
}

// C31, I7: a ledger row leaves only with a delete that was done.
func TestOutcomeOfADelete(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	failed := func(change func(*record)) *record {
		r := &record{state: desired.Failing, present: true, desiredRevision: 7, attempts: 1, err: "refused", approved: true, called: true, delay: 1}
		change(r)
		return r
	}
	for name, c := range map[string]struct {
		before string
		out    driver.Outcome
		want   *record
	}{
		"Done":               {"applied", driver.Done(), &record{gone: true, called: true}},
		"DoneAfterFailures":  {"delete, due", driver.Done(), &record{gone: true, called: true}},
		"DoneUnknown":        {"unknown", driver.Done(), &record{gone: true, called: true}},
		"FailedFirst":        {"applied", driver.Backoff(refused), failed(func(*record) {})},
		"FailedAfterApplies": {"failing", driver.Backoff(refused), failed(func(*record) {})},
		"FailedAgain":        {"delete, due", driver.Backoff(refused), failed(func(r *record) { r.attempts, r.delay = 3, 4 })},
		"Terminal":           {"applied", driver.Terminal(refused), failed(func(r *record) { r.state, r.delay = desired.Blocked, -1 })},
		"RetryAfter":         {"applied", driver.RetryAfter(time.Minute, refused), failed(func(r *record) { r.delay = 60 })},
		"FailedNeverApplied": {"unknown", driver.Backoff(refused), failed(func(*record) {})},
		"TerminalAfterGuard": {"guarded delete", driver.Terminal(refused), failed(func(r *record) { r.state, r.delay = desired.Blocked, -1 })},
		"WaitingFirst":       {"applied", driver.Waiting(time.Minute, "refused"), failed(func(r *record) { r.state, r.attempts, r.delay = desired.Pending, 0, 60 })},
		"WaitingAgain":       {"delete, due", driver.Waiting(time.Minute, "refused"), failed(func(r *record) { r.state, r.attempts, r.delay = desired.Pending, 2, 60 })},
		"RetryAfterTooShort": {"applied", driver.RetryAfter(-time.Second, refused), failed(func(*record) {})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireRecord(t, c.want, testLook(desired.Row{Key: "k"}, c.before, "plain").outcome(actDelete, c.out, testBackoff))
		})
	}
}

// requireRecord compares records; the delay of a back-off or of one that waits is jittered, and one that the target asked for is lengthened.
func requireRecord(t *testing.T, want, have *record) {
	t.Helper()
	switch {
	case want.delay > 0 && (want.delay < 60 || want.state == desired.Pending):
		require.InDelta(t, want.delay, have.delay, jitter*want.delay)
		have.delay = want.delay
	case want.delay > 0:
		require.GreaterOrEqual(t, have.delay, want.delay)
		require.LessOrEqual(t, have.delay, (1+jitter)*want.delay)
		have.delay = want.delay
	}
	require.Equal(t, want, have)
}

func TestOutcomeKeepsTheReasonShort(t *testing.T) {
	t.Parallel()
	long := make([]byte, 10_000)
	rec := testLook(wantedRow(), "unknown", "plain").outcome(actApply, driver.Backoff(errors.New(string(long))), testBackoff)
	require.LessOrEqual(t, len(rec.err), maxErrorBytes)
	require.NotContains(t, rec.err, "\x00")
}

// What a target has after a call that failed is not known: an unchanged hash must not be taken for unchanged content.
func TestFailedCallMakesTheContentUnknown(t *testing.T) {
	t.Parallel()
	l := testLook(wantedRow(), "applied", "force")
	rec := l.outcome(actApply, driver.Backoff(errors.New("cut off")), testBackoff)
	require.Nil(t, rec.appliedHash)
	require.True(t, rec.present)
}
