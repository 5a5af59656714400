package webhook

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// C26.
func TestAnswersBecomeOutcomes(t *testing.T) {
	t.Parallel()

	const apply, del = driver.ActionApply, driver.ActionDelete
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		action driver.Action
		status int
		after  string
		want   driver.Verdict
		pause  time.Duration
	}{
		{apply, 200, "", driver.VerdictDone, 0},
		{apply, 201, "", driver.VerdictDone, 0},
		{apply, 202, "60", driver.VerdictDone, 0},
		{apply, 204, "", driver.VerdictDone, 0},
		{del, 200, "", driver.VerdictDone, 0},
		{del, 404, "", driver.VerdictDone, 0}, // C31
		{del, 410, "", driver.VerdictDone, 0}, // C31
		{apply, 404, "", driver.VerdictTerminal, 0},
		{apply, 410, "", driver.VerdictTerminal, 0},
		{apply, 400, "60", driver.VerdictTerminal, 0},
		{apply, 413, "", driver.VerdictTerminal, 0},
		{apply, 422, "", driver.VerdictTerminal, 0},
		{del, 405, "", driver.VerdictTerminal, 0},
		{apply, 501, "60", driver.VerdictTerminal, 0},
		{apply, 401, "", driver.VerdictUnreachable, 0},
		{apply, 407, "", driver.VerdictUnreachable, 0},
		{apply, 403, "", driver.VerdictBackoff, 0},
		{apply, 409, "", driver.VerdictBackoff, 0},
		{apply, 412, "", driver.VerdictBackoff, 0},
		{apply, 301, "", driver.VerdictBackoff, 0},
		{apply, 304, "", driver.VerdictBackoff, 0},
		{apply, 408, "", driver.VerdictBackoff, 0},
		{apply, 425, "", driver.VerdictBackoff, 0},
		{apply, 429, "", driver.VerdictBackoff, 0},
		{apply, 500, "", driver.VerdictBackoff, 0},
		{del, 503, "", driver.VerdictBackoff, 0},
		{apply, 599, "", driver.VerdictBackoff, 0},
		{apply, 429, "30", driver.VerdictRetryAfter, 30 * time.Second},
		{apply, 408, " 1 ", driver.VerdictRetryAfter, time.Second},
		{apply, 425, "2", driver.VerdictRetryAfter, 2 * time.Second},
		{del, 503, "Fri, 02 Jan 2026 03:05:05 GMT", driver.VerdictRetryAfter, time.Minute},
		{apply, 500, "86400", driver.VerdictRetryAfter, time.Hour},
		{apply, 500, "99999999999999999999", driver.VerdictBackoff, 0},
		{apply, 500, "Fri, 02 Jan 2099 03:05:05 GMT", driver.VerdictRetryAfter, time.Hour},
		{apply, 503, "Fri, 02 Jan 2026 03:04:05 GMT", driver.VerdictBackoff, 0},
		{apply, 503, "0", driver.VerdictBackoff, 0},
		{apply, 503, "-5", driver.VerdictBackoff, 0},
		{apply, 503, "soon", driver.VerdictBackoff, 0},
	} {
		got := answered(c.action, c.status, c.after, now)
		require.Equal(t, c.want, got.Verdict, "%s %d %q", c.action, c.status, c.after)
		require.Equal(t, c.pause, got.After, "%s %d %q", c.action, c.status, c.after)
		require.Equal(t, c.status == http.StatusTooManyRequests && c.pause > 0, got.Whole, "%s %d %q", c.action, c.status, c.after)
	}
}

// The example of the Standard Webhooks specification.
func TestSignatureOfTheSpecification(t *testing.T) {
	t.Parallel()

	key := []byte{
		0x31, 0xf2, 0x90, 0xf6, 0xbf, 0x06, 0x29, 0x8a, 0xab, 0x4f, 0x08, 0xd4, 0x3c, 0x3f, 0x08, 0x2c, 0xf6, 0x48, 0xa3, 0x62, 0xda,
		0x2d, 0xa4, 0xb0,
	}
	header := http.Header{}
	sign(header, [][]byte{key, []byte("another")}, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	require.Equal(t, "msg_p5jXN8AQM9LWM0D4loKWxJek", header.Get("Webhook-Id"))
	require.Equal(t, "1614265330", header.Get("Webhook-Timestamp"))
	require.Regexp(t, `^v1,g0hM9SsE\+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v1,[A-Za-z0-9+/]{43}=$`, header.Get("Webhook-Signature"))
}

func TestNoTwoNamesShareASegment(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringOf(rapid.RuneFrom([]rune("./\\%2EFa é;\x00"))).Draw(t, "name")
		other := rapid.StringOf(rapid.RuneFrom([]rune("./\\%2EFa é;\x00"))).Draw(t, "other")
		require.Equal(t, name == other, segment(name) == segment(other))
		require.NotContains(t, []string{"", ".", ".."}, segment(name))
	})
}
