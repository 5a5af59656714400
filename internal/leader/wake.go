package leader

import "time"

// The leader's ways of waiting. Asleep it holds the sleep lock, so that writers NOTIFY; awake it does not, so that
// they do not, and it polls. Dozing is the way from awake to asleep: it holds the lock already, but transactions that
// began before may have seen it free and will notify nobody, so it polls slowly until each of them has ended.
const (
	awakePoll = 3 * time.Millisecond
	// A look costs as much as many changes, and its processor time is the writers' too. The more there are, the more of
	// them are taken at once: the poll waits a millisecond for each awakeCrowd changes a second, up to awakePollMost.
	awakeCrowd    = 400
	awakePollMost = 20 * time.Millisecond
	crowdMost     = 10000 // changes a second; more is soon forgotten
	dozePoll      = 40 * time.Millisecond
	dozePollSlow  = 500 * time.Millisecond // for transactions that stay open
	dozeSlowFrom  = 10 * time.Second
	// fallbackPoll finds what every other way missed.
	fallbackPoll = 5 * time.Second

	// Asleep, this many notifications within rateWindow (300 a second) mean that NOTIFY costs the writers more than
	// polling costs us.
	awakeAfterWakes = 30
	rateWindow      = 100 * time.Millisecond
	// From this many within rateWindow on, the leader looks whether commits queue for the lock of NOTIFY. On a slow
	// disk they queue at any rate: each holds it while it is flushed.
	queueFromWakes = 5
	queueOfCommits = 2
	// Awake, fewer ticks than this within sleepWindow mean that nobody would feel a NOTIFY.
	sleepBelowTicks = 25
	sleepWindow     = 250 * time.Millisecond
)

// crowd knows how many changes come, a second, as a moving average over some eight looks.
type crowd struct {
	average float64
	looked  time.Time
}

// add counts the changes that a look found.
func (c *crowd) add(now time.Time, changes int) {
	if since := now.Sub(c.looked); !c.looked.IsZero() && since > 0 {
		c.average += (min(float64(changes)/since.Seconds(), crowdMost) - c.average) / 8
	}
	c.looked = now
}

// poll is how long the leader waits until its next look while it is awake.
func (c *crowd) poll() time.Duration {
	return min(awakePollMost, max(awakePoll, time.Duration(c.average/awakeCrowd*float64(time.Millisecond))))
}

type mode int

const (
	modeAwake mode = iota
	modeDozing
	modeAsleep
)

// rate counts events in windows of fixed length.
type rate struct {
	window time.Duration
	start  time.Time
	count  int64
}

func (r *rate) add(n int64) { r.count += n }

// ended reports the count of a window that has ended, once.
func (r *rate) ended(now time.Time) (int64, bool) {
	if now.Sub(r.start) < r.window {
		return 0, false
	}
	n := r.count
	// A window that lasted longer than it should (nothing happened) counts for its own length only.
	if took := now.Sub(r.start); took > 2*r.window {
		n = n * int64(r.window) / int64(took)
	}
	r.start, r.count = now, 0
	return n, true
}
