package agent

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// What a driver asks to have approved is held, across restarts, until the agent or the database approves. The approval is for one spec,
// outlives a restart, and is used up by the call that succeeds.
func TestCallsThatTheDriverAsksAboutWaitForApproval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  sync_interval: off\n"
		b.Control(client.Controls{Approve: 1})
		b.Set("app", "web", spec(1))
		r := b.start(t)
		after(time.Second)
		b.far.change(func() { b.far.outcomes["web"] = driver.Unapproved(errors.New("the disk goes")) })

		b.Set("app", "web", spec(2))
		after(time.Millisecond)
		require.Equal(t, "web v2 progressing: waits for approval: the disk goes", b.healths(), "to wait is no failure")
		after(2 * time.Minute)
		require.Equal(t, StateHeld, r.target().State)
		require.Equal(t, 1, b.Info().Held, "reported")
		require.Len(t, b.far.called(), 2, "it is called for once")
		require.NoError(t, r.stop())
		r = b.start(t)
		require.Equal(t, 1, r.target().Held)
		after(time.Second)
		require.Equal(t, 1, r.target().Held)
		status, body := r.ask(http.MethodPost, "/approve?target=eu", "localhost:7434", "127.0.0.1:999")
		require.Equal(t, http.StatusOK, status)
		require.JSONEq(t, `{"target": "eu", "approved": 1}`, body)
		after(time.Second)
		require.Equal(t, `app/web={"n":2}`, b.far.has())
		require.Equal(t, StateOK, r.target().State)

		b.Set("app", "web", spec(3))
		after(time.Second)
		require.Equal(t, 1, r.target().Held, "another spec asks anew")
		b.far.change(func() { b.far.down = true })
		b.Control(client.Controls{Approve: 2})
		after(time.Second)
		require.NoError(t, r.stop())
		b.far.change(func() { b.far.down = false })
		r = b.start(t)
		after(time.Minute)
		require.Equal(t, `app/web={"n":3}`, b.far.has(), "the approval is kept")

		b.Delete("app", "web")
		after(time.Second)
		require.Equal(t, 1, r.target().Held)
		b.Control(client.Controls{Approve: 3})
		after(time.Second)
		require.Empty(t, b.far.has())
		require.Zero(t, r.target().Held)
	})
}
