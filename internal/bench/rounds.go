package bench

import (
	"context"
	"slices"
	"time"

	"github.com/pgreconciler/reconciler/internal/measure"
)

// state is what the product does while writers write.
type state string

const (
	unread   state = "unread"   // nothing: no process runs
	notified state = "notified" // it reads, and writers notify it when it sleeps
	polled   state = "polled"   // it reads, and NOTIFY is off
)

// sample names what one figure is about.
type sample struct {
	what    string // a table, or a kind of latency
	state   state
	writers int // that write at full speed; 0: does not apply
	rate    int // changes a second; 0: does not apply
	point   string
}

// samples are figures, one for each round.
type samples map[sample][]float64

func (s samples) add(of sample, value float64) { s[of] = append(s[of], value) }

// Points of a distribution.
const (
	p50 = "p50"
	p99 = "p99"
)

// addTimes notes the points of a distribution.
func (s samples) addTimes(of sample, times []time.Duration) {
	for point, part := range map[string]float64{p50: .5, p99: .99} {
		of.point = point
		s.add(of, measure.Percentile(times, part))
	}
}

// Kinds of latency.
const (
	bareTrip = "bare"   // a bare commit with NOTIFY, until it arrives
	call     = "call"   // a commit, until the driver is called
	commit   = "commit" // a commit alone, by one writer of the untracked table
	lazyOne  = "lazy"   // the same, not waiting for the disk
)

// round measures everything once. Each round begins with another state, and changes the order of the tables, so that what
// changes with time or with what was done before does not always meet the same.
func (l *lab) round(ctx context.Context, n int) error {
	states := []func(context.Context, int) error{
		l.unread,
		func(ctx context.Context, n int) error {
			return l.reading(ctx, true, func(ctx context.Context, r *reader) error { return l.notified(ctx, r, n) })
		},
		func(ctx context.Context, n int) error {
			return l.reading(ctx, false, func(ctx context.Context, r *reader) error { return l.polled(ctx, r, n) })
		},
	}
	for i := range states {
		if err := states[(n+i)%len(states)](ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// unread measures while no process runs.
func (l *lab) unread(ctx context.Context, n int) error {
	_, times, err := measure.Commits(ctx, l.load(untracked, 1))
	if err != nil {
		return err
	}
	l.samples.addTimes(sample{what: commit}, times)
	lazy := l.load(untracked, 1)
	lazy.Pool = l.lazy
	if _, times, err = measure.Commits(ctx, lazy); err != nil {
		return err
	}
	l.samples.addTimes(sample{what: lazyOne}, times)
	return l.commits(ctx, unread, n)
}

// notified measures while a process reads and NOTIFY is on.
func (l *lab) notified(ctx context.Context, r *reader, n int) error {
	if err := l.commits(ctx, notified, n); err != nil {
		return err
	}
	if err := r.rest(ctx); err != nil {
		return err
	}
	times, err := measure.Trips(ctx, l.pace(untracked, slowRate, slowLengths))
	if err != nil {
		return err
	}
	l.samples.addTimes(sample{what: bareTrip}, times)
	return l.calls(ctx, r, notified)
}

// polled measures while a process reads and NOTIFY is off.
func (l *lab) polled(ctx context.Context, r *reader, n int) error {
	if err := l.commits(ctx, polled, n); err != nil {
		return err
	}
	return l.calls(ctx, r, polled)
}

// commits measures both tables, one right after the other, with one writer and with many.
func (l *lab) commits(ctx context.Context, in state, n int) error {
	tables := []string{untracked, tracked}
	if n%2 == 1 {
		slices.Reverse(tables)
	}
	for _, writers := range l.opts.crowds() {
		for _, table := range tables {
			rate, _, err := measure.Commits(ctx, l.load(table, writers))
			if err != nil {
				return err
			}
			l.samples.add(sample{what: table, state: in, writers: writers}, rate)
			if table == tracked && in != unread {
				if err := l.settled(ctx); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// calls measures from commit to driver call, at two rates.
func (l *lab) calls(ctx context.Context, r *reader, in state) error {
	for rate, lengths := range map[int]int{slowRate: slowLengths, fastRate: 1} {
		times, err := measure.Changes(ctx, r.sink, l.pace(tracked, rate, lengths))
		if err != nil {
			return err
		}
		l.samples.addTimes(sample{what: call, state: in, rate: rate}, times)
	}
	return nil
}
