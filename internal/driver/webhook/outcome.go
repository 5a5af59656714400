package webhook

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// answered classifies an answer; the caller gives the error.
func answered(action driver.Action, status int, retryAfter string, now time.Time) driver.Outcome {
	switch {
	case status >= 200 && status < 300:
		return driver.Done()
	case action == driver.ActionDelete && (status == http.StatusNotFound || status == http.StatusGone):
		return driver.Done()
	case status == http.StatusUnauthorized, status == http.StatusProxyAuthRequired:
		// Nobody's credentials are wrong for one object only: one fact, mended in one place.
		return driver.Unreachable(nil)
	case status == http.StatusForbidden, status == http.StatusConflict, status == http.StatusPreconditionFailed, isRedirect(status):
		// Changed by somebody else, and not by a new spec: a right, a newer owner's write, the endpoint's address.
		return driver.Backoff(nil)
	case status == http.StatusNotImplemented:
		return driver.Terminal(nil)
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status >= 500:
		after := parseRetryAfter(retryAfter, now)
		switch {
		case after > 0 && status == http.StatusTooManyRequests:
			return driver.SlowDown(after, nil)
		case after > 0:
			return driver.RetryAfter(after, nil)
		}
		return driver.Backoff(nil)
	case status >= 400:
		return driver.Terminal(nil)
	default:
		return driver.Backoff(nil)
	}
}

func isRedirect(status int) bool { return status >= 300 && status < 400 }

// parseRetryAfter reads the header in both of its forms. It returns 0 for none, nonsense and the past.
func parseRetryAfter(text string, now time.Time) time.Duration {
	text = strings.TrimSpace(text)
	if seconds, err := strconv.ParseUint(text, 10, 64); err == nil {
		return time.Duration(min(seconds, uint64(driver.RetryAfterMax/time.Second))) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), driver.RetryAfterMax)
}
