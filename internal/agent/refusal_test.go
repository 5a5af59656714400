package agent

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// fill publishes objects.
func (b *bed) fill(n int) {
	for i := range n {
		b.Set("app", fmt.Sprintf("%03d", i), spec(i))
	}
}

func (b *bed) statePath() string { return b.dir + "/state/eu.db" }

// A3: nothing that a server may turn out to be deletes more than the guard lets pass.
func TestAgentStopsAtAnotherServerAndDeletesNothing(t *testing.T) {
	t.Parallel()
	for name, become := range map[string]func(*bed){
		"AnotherInstallation": func(b *bed) { b.Become("other") },
		"DumpElsewhere":       func(b *bed) { b.Become("streamtest/7400/copy") },
		"AnotherStream":       func(b *bed) { b.Reset("unknown") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.fill(20)
				r := b.start(t)
				after(time.Second)
				before := b.far.has()
				for i := range 20 {
					b.Lose("app", fmt.Sprintf("%03d", i))
				}
				become(b)
				b.Cut()
				<-r.ended
				require.ErrorContains(t, r.err, "target eu: ")
				require.ErrorContains(t, r.err, "its state "+b.statePath()+" is kept; to follow this stream from now on, start the agent once with --adopt")
				require.Equal(t, before, b.far.has())
				require.Equal(t, StateStopped, r.target().State)

				r = b.run(t, b.load(t, true))
				after(time.Minute)
				require.Equal(t, before, b.far.has(), "what the adopted stream leaves out is held by the guard")
				require.Equal(t, "streamtest", b.far.home.ID, "the far side is still the same agent's")
				require.Equal(t, 20, r.target().Held)
				require.Equal(t, StateHeld, r.target().State)
				b.Control(client.Controls{Approve: 1})
				after(time.Minute)
				require.Empty(t, b.far.has())
			})
		})
	}
}

// A copy of the database has the same installation id: an agent that follows it has a mark of its own.
func TestF163_AgentsMarkWithAllOfTheInstallation(t *testing.T) {
	t.Parallel()
	for _, database := range []string{"app", "copy"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.Become("7d4f/7400/" + database)
			b.fill(1)
			home := driver.Home{ID: "7d4f", System: "7400", Database: database, Agent: true}
			for range 2 { // also as its state has it
				r := b.start(t)
				after(time.Second)
				require.Equal(t, home, b.far.home)
				require.NoError(t, r.stop())
			}
		})
	}
}

func TestAgentHoldsWhatARestoredServerHasLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.fill(20)
		r := b.start(t)
		after(time.Second)
		before := b.far.has()
		for i := range 15 {
			b.Lose("app", fmt.Sprintf("%03d", i))
		}
		b.Reset("restored")
		after(10 * time.Minute)
		require.Equal(t, before, b.far.has())
		require.Equal(t, 15, r.target().Held)
		require.Equal(t, 15, b.Info().Held)
		require.Equal(t, 15, r.targets[0].approve())
		after(time.Second)
		require.Len(t, strings.Fields(b.far.has()), 5)
		require.Equal(t, StateOK, r.target().State)
	})
}

func TestAgentKeepsTheFarSideWhenItsStateIsLostOrOld(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, b *bed, old []byte){
		"Lost":       func(t *testing.T, b *bed, _ []byte) { require.NoError(t, os.RemoveAll(b.dir+"/state")) },
		"RolledBack": func(t *testing.T, b *bed, old []byte) { require.NoError(t, os.WriteFile(b.statePath(), old, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.fill(20)
				r := b.start(t)
				after(time.Second)
				require.NoError(t, r.stop())
				old, err := os.ReadFile(b.statePath())
				require.NoError(t, err)

				r = b.start(t)
				for i := range 30 {
					b.Set("app", fmt.Sprintf("new-%03d", i), spec(i))
				}
				after(time.Minute)
				require.NoError(t, r.stop())
				before := b.far.has()
				for i := range 30 { // and the server has no tombstones: only a listing finds them
					b.Delete("app", fmt.Sprintf("new-%03d", i))
				}
				b.Expire()
				lose(t, b, old)

				r = b.start(t)
				after(10 * time.Minute)
				require.Equal(t, before, b.far.has())
				require.Equal(t, 30, r.target().Held)
			})
		})
	}
}

func TestAgentGoesOnWithATargetThatTheServerRefuses(t *testing.T) {
	t.Parallel()
	for status, text := range map[int]string{
		http.StatusUnauthorized: "refused (status 401)", http.StatusForbidden: "refused (status 403)", http.StatusNotFound: "refused (status 404)",
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.lines = "  sync_interval: 1m\n"
				b.fill(3)
				r := b.start(t)
				after(time.Second)
				before := b.far.has()
				b.wire.change(func() { b.wire.refused = status })
				b.Cut()
				after(20 * time.Minute)
				require.Equal(t, StateRefused, r.target().State)
				require.Equal(t, text, r.target().Server)
				require.Equal(t, text, r.target().ready)
				require.Equal(t, before, b.far.has())
				refusals := b.log.count("msg=target_refused")
				require.Greater(t, refusals, 5)
				require.Less(t, refusals, 20, "the pause grows")

				b.far.change(func() { delete(b.far.objects, client.Ref{Resource: "app", Key: "001"}) })
				after(2 * time.Minute)
				require.Equal(t, before, b.far.has(), "it is repaired all the same")

				b.wire.change(func() { b.wire.refused = 0 })
				b.Delete("app", "000")
				after(10 * time.Minute)
				require.Equal(t, `app/001={"n":1} app/002={"n":2}`, b.far.has())
				require.Equal(t, StateOK, r.target().State)
				require.Empty(t, r.target().ready)
			})
		})
	}
}

func TestAgentRefusesAServerWithANewerProtocol(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.Speak(2)
		r := b.start(t)
		after(time.Second)
		require.Equal(t, StateRefused, r.target().State)
		require.Contains(t, r.target().Server, "the server speaks protocol 2, and this client 1: upgrade the client")
	})
}

func TestAgentWithoutTheRightToReportWorksAllTheSame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.RefuseReports(http.StatusForbidden)
		b.fill(1)
		r := b.start(t)
		after(5 * time.Minute)
		require.Equal(t, `app/000={"n":0}`, b.far.has())
		require.Equal(t, StateOK, r.target().State)
		require.Less(t, len(b.wire.sent()), 4, "it does not go on asking")
		b.RefuseReports(0)
		after(20 * time.Minute)
		require.Equal(t, "host-7", b.Info().Name, "the token may report now")
		require.Len(t, b.Observations(), 1)
		b.wire.sent()
		after(5 * time.Minute)
		require.GreaterOrEqual(t, len(b.wire.sent()), 4, "a sign of life each minute")
	})
}
