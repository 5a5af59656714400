package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	// errorShownMost is how much of an error reaches the ledger.
	errorShownMost = 1500
	// waitLeast and waitMost bound the pause before something is looked at again that is on its way.
	waitLeast = time.Second
	waitMost  = 30 * time.Second
	// missingMost is how long a namespace or a kind may be on its way. After that its absence is a failure, and shown as one.
	missingMost = 5 * time.Minute
	// waitsForget is when a wait is forgotten that no call has asked for.
	waitsForget = 10 * time.Minute
)

// outcome classifies an error of the cluster.
func (c *cluster) outcome(ctx context.Context, err error) driver.Outcome {
	var busy *busyError
	var foreign *foreignError
	var former *formerError
	switch {
	case err == nil:
		return driver.Done()
	case ctx.Err() != nil:
		return driver.Backoff(context.Cause(ctx))
	case errors.As(err, &busy):
		return driver.SlowDown(busy.after, shown(busy))
	case errors.As(err, &foreign):
		return driver.Unreachable(foreign)
	case errors.As(err, &former):
		return driver.Backoff(err) // an option may change
	}
	if status := statusOf(err); status != nil {
		return c.answered(status, err)
	}
	return driver.Unreachable(shown(err)) // there was no answer: no connection, no credentials, no certificate that is trusted
}

// answered classifies an answer that is no success.
func (c *cluster) answered(status *metav1.Status, err error) driver.Outcome {
	text := shown(err)
	switch {
	case status.Code == http.StatusUnauthorized:
		return driver.Unreachable(fmt.Errorf("the cluster refuses the credentials: %w", text))
	case denied(status):
		return driver.Backoff(text) // a policy may change
	case status.Code == http.StatusForbidden, status.Code == http.StatusNotFound, status.Code == http.StatusConflict:
		return driver.Backoff(text) // a right, a quota, another writer: changed without a new spec
	case mistyped(status):
		return driver.Terminal(text)
	case status.Code == http.StatusRequestTimeout, status.Code >= http.StatusInternalServerError:
		return driver.Backoff(text)
	case immutable(err):
		return driver.Terminal(fmt.Errorf("%w: to have it deleted and created anew, set the annotation %s: \"true\" in the manifest", text, markReplace))
	case status.Code >= http.StatusBadRequest:
		return driver.Terminal(text)
	}
	return driver.Backoff(text)
}

// denied reports whether an admission webhook refused the request.
func denied(status *metav1.Status) bool {
	return strings.HasPrefix(status.Message, "admission webhook ")
}

// mistyped reports whether the manifest has a field that its kind does not have, or of another type. Servers answer that with status 500.
// They answer the same of a conversion webhook that fails, which is not the manifest's fault.
func mistyped(status *metav1.Status) bool {
	wrong := strings.HasPrefix(status.Message, "failed to create typed patch object") ||
		strings.HasPrefix(status.Message, "failed to convert new object") && !strings.Contains(status.Message, "conversion webhook")
	return status.Code == http.StatusInternalServerError && wrong
}

// statusOf returns the Status that a server has answered with; nil: there was no answer.
func statusOf(err error) *metav1.Status {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return nil
	}
	status := answer.Status()
	return &status
}

func causesOf(err error) []metav1.StatusCause { return causesIn(statusOf(err)) }

func causesIn(status *metav1.Status) []metav1.StatusCause {
	if status == nil || status.Details == nil {
		return nil
	}
	return status.Details.Causes
}

// immutable reports whether a field was to be changed that cannot be. Servers have a text for that, and no reason.
func immutable(err error) bool {
	return slices.ContainsFunc(causesOf(err), func(cause metav1.StatusCause) bool {
		return strings.Contains(cause.Message, "immutable") || strings.Contains(cause.Message, "updates to ") && strings.Contains(cause.Message, "forbidden")
	})
}

// causeOf reports whether an error has a cause of this type.
func causeOf(err error, cause metav1.CauseType) bool { return apierrors.HasStatusCause(err, cause) }

// missingNamespace reports whether the namespace that a request was for does not exist.
func missingNamespace(err error) bool {
	status := statusOf(err)
	return apierrors.IsNotFound(err) && status.Details != nil && status.Details.Kind == "namespaces"
}

// missingKind reports whether the path of a request is none: the kind is gone since it was looked up.
func missingKind(err error) bool {
	status := statusOf(err)
	return apierrors.IsNotFound(err) &&
		(status.Details == nil || status.Details.Name == "" || causeOf(err, metav1.CauseTypeUnexpectedServerResponse))
}

// shown returns an error as others may read it: on one line, and not too long.
func shown(err error) error { return errors.New(driver.Snippet([]byte(err.Error()), errorShownMost)) }

// waits knows since when objects wait for something.
type waits struct {
	mu    sync.Mutex // guards what follows
	since map[string]wait
	swept time.Time
}

type wait struct {
	reason      string
	began, last time.Time
}

// on returns the outcome of a call that waits: the pause grows with the time since it first did for this reason. After most, if that is
// not 0, the wait is a failure.
func (w *waits) on(object, reason string, most time.Duration) driver.Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	one := w.since[object]
	if one.reason != reason {
		one = wait{reason: reason, began: now}
	}
	one.last = now
	w.since[object] = one
	if now.Sub(w.swept) > waitsForget {
		w.swept = now
		for name, one := range w.since {
			if now.Sub(one.last) > waitsForget {
				delete(w.since, name)
			}
		}
	}
	waited := now.Sub(one.began)
	if most > 0 && waited > most {
		return driver.Backoff(fmt.Errorf("%s, for %s now", reason, waited.Round(time.Minute)))
	}
	return driver.Waiting(min(max(waited/4, waitLeast), waitMost), reason)
}

// over forgets the wait of an object.
func (w *waits) over(object string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, object)
}

// worse returns the outcome that says what is to happen next, of two members of an object.
func worse(a, b driver.Outcome) driver.Outcome {
	order := []driver.Verdict{
		driver.VerdictDone, driver.VerdictWaiting, driver.VerdictUnapproved, driver.VerdictTerminal, driver.VerdictBackoff, driver.VerdictRetryAfter,
		driver.VerdictUnreachable,
	}
	if slices.Index(order, b.Verdict) > slices.Index(order, a.Verdict) {
		return b
	}
	return a
}
