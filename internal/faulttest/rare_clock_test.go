//go:build long

package faulttest_test

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// rareShifted is a start of a process whose clock is wrong.
func rareShifted(t *testing.T, config string, by time.Duration) rareStart {
	t.Helper()
	return rareStart{
		binary: rareShiftedBinary(t), config: config,
		env: []string{rareShiftVariable + "=" + strconv.Itoa(int(by/time.Second))},
	}
}

// clockIs fails unless the process takes it to be so much later than it is.
func (d *rareDaemon) clockIs(by time.Duration) {
	d.t.Helper()
	line := d.awaits("started")
	said, err := time.Parse(time.RFC3339, line["time"].(string))
	require.NoError(d.t, err)
	require.InDelta(d.t, by.Seconds(), time.Until(said).Seconds(), 120)
}

const (
	rareUnwell = "app/101" // object that the endpoint refuses until it is well
	rareLater  = "app/102" // object that the endpoint asks to be sent again at a time of day
)

// rareTemper is an endpoint's that is not well.
type rareTemper struct {
	well atomic.Bool

	mu    sync.Mutex // guards what follows
	later time.Time  // when rareLater may be sent again; zero: it was not sent
	early int        // calls before that
}

func (p *rareTemper) answer(w http.ResponseWriter, call rareCall) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case call.Object == rareUnwell && !p.well.Load():
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	case call.Object == rareLater && p.later.IsZero():
		// The header has whole seconds, and the pause may be a fifth shorter.
		p.later = time.Now().Add(3 * time.Second)
		w.Header().Set("Retry-After", p.later.UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	case call.Object == rareLater && time.Until(p.later) > 2*time.Second:
		p.early++
	}
	return false
}

// C55: of two processes one has a clock that is an hour ahead, the other one an hour behind. Leases, backoff and times
// in the ledger are the database's: nobody owns twice, a killed one is taken over when its lease has expired, neither
// earlier nor much later, and what failed is tried again when it is due.
func TestRareWrongClockHasNoEffect(t *testing.T) {
	t.Parallel()
	for name, killed := range map[string]time.Duration{"KillTheOneAhead": time.Hour, "KillTheOneBehind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rareChance(t)
			w := newRareWorld(t, pgtest.New(t))
			w.fill(60, "us", "eu")
			temper := &rareTemper{}
			endpoint := newRareEndpoint(t, "127.0.0.1")
			endpoint.Answer = temper.answer
			us := endpoint.target("us")
			us["backoff"] = rareObject{"max": "1s"}
			config := w.configure("all", []rareObject{us, w.fileTarget("eu")})
			// Nobody else writes to these.
			w.exec(`INSERT INTO apps (id, region) VALUES (101, 'us'), (102, 'us')`)

			// Each has its turn with the endpoint: the first owns everything until the second has come.
			first, second := rareShifted(t, config, killed), rareShifted(t, config, -killed)
			a := w.start(first)
			a.clockIs(killed)
			w.ownedBy(rarePatience, map[string]string{"eu": a.pid(), "us": a.pid()})
			w.failingOnTime()
			w.becomes("applied", `SELECT state FROM reconciler.objects WHERE target = 'us' AND resource || '/' || key = $1`, rareLater)
			b := w.start(second)
			b.clockIs(-killed)
			rareEventually(t, rarePatience, func() error { return rareShared(w.owners(), a, b) }, "each owns a target")

			writers := w.write(r, 60, "eu", "us")
			pass(time.Second, t.Context().Done())
			until := w.text(`SELECT max(h.at + t.lease_ttl) FROM reconciler.targets t JOIN reconciler.heartbeats h ON h.instance = t.owner WHERE owner = (SELECT id FROM reconciler.instances WHERE name LIKE '%:' || $1)`, a.pid())
			a.kill()
			after := w.ownedBy(rareTakeover, map[string]string{"eu": b.pid(), "us": b.pid()})
			require.Equal(t, "true", w.text(`SELECT clock_timestamp() >= $1::timestamptz`, until), "taken over while the lease lived")
			t.Logf("taken over %v after the kill", after)
			writers.stop()
			w.failingOnTime()
			temper.well.Store(true)

			// Commands have the wrong clock too.
			w.wait(second)
			w.wait(first)
			w.equal(w.files, "eu")
			w.equal(endpoint.have, "us")
			require.NoError(t, rareInOrder(endpoint.journal()), "VIOLATION: calls out of order")
			require.Zero(t, temper.early, "called before the time that the endpoint asked for")
			require.Equal(t, "0", w.text(`SELECT count(*) FROM reconciler.objects WHERE NOT applied_at BETWEEN clock_timestamp() - interval '10 min' AND clock_timestamp()`))
			require.Empty(t, b.failures())
			b.stop()
		})
	}
}

// failingOnTime waits until an object that keeps failing was tried a few times more, and finds its next attempt where
// the longest backoff puts it, all the while.
func (w *rareWorld) failingOnTime() {
	w.t.Helper()
	const more = 2
	var seen []int
	rareEventually(w.t, rarePatience, func() error {
		text := w.text(`SELECT format('%s %s', attempts, next_attempt_at BETWEEN clock_timestamp() - interval '1 min' AND clock_timestamp() + interval '1.2 s')
			FROM reconciler.failing WHERE target = 'us' AND resource || '/' || key = $1`, rareUnwell)
		var attempts int
		var due string
		if _, err := fmt.Sscan(text, &attempts, &due); err != nil {
			return fmt.Errorf("%s is not failing: %q", rareUnwell, text)
		}
		require.Equal(w.t, "t", due, "next attempt after %d", attempts)
		seen = append(seen, attempts)
		if attempts < seen[0]+more {
			return fmt.Errorf("%d attempts", attempts)
		}
		return nil
	}, "attempts at a failing object")
}

// rareShared says what is wrong unless each of the processes owns one of two targets.
func rareShared(owners map[string]string, among ...*rareDaemon) error {
	if len(owners) != len(among) {
		return fmt.Errorf("owners: %v", owners)
	}
	for _, d := range among {
		owns := false
		for _, pid := range owners {
			owns = owns || pid == d.pid()
		}
		if !owns {
			return errors.New("process " + d.pid() + " owns nothing")
		}
	}
	return nil
}
