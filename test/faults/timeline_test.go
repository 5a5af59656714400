package faults_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// timeline remembers when parts of a world were out of order.
type timeline struct {
	mu    sync.Mutex // guards what follows
	ills  map[string]int
	since map[string]time.Time
	spans map[string][]span
}

type span struct{ From, To time.Time }

func newTimeline() *timeline {
	return &timeline{ills: map[string]int{}, since: map[string]time.Time{}, spans: map[string][]span{}}
}

// ill says that something is wrong with a part from now on; it is well again after as many calls of well.
func (l *timeline) ill(part string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ills[part]++; l.ills[part] == 1 {
		l.since[part] = time.Now()
	}
}

func (l *timeline) well(part string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ills[part]--; l.ills[part] == 0 {
		l.spans[part] = append(l.spans[part], span{l.since[part], time.Now()})
	}
}

// healthy says whether nothing was wrong with a part between two times.
func (l *timeline) healthy(part string, from, to time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ills[part] > 0 && l.since[part].Before(to) {
		return false
	}
	return !slices.ContainsFunc(l.spans[part], func(s span) bool { return s.From.Before(to) && s.To.After(from) })
}

// out says whether something was wrong with a part all the time between two times.
func (l *timeline) out(part string, from, to time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ills[part] > 0 && !l.since[part].After(from) {
		return true
	}
	return slices.ContainsFunc(l.spans[part], func(s span) bool { return !s.From.After(from) && !s.To.Before(to) })
}

// falls counts how often something went wrong with a part, that was well before, between two times.
func (l *timeline) falls(part string, from, to time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	within := func(at time.Time) bool { return at.After(from) && at.Before(to) }
	for _, s := range l.spans[part] {
		if within(s.From) {
			n++
		}
	}
	if l.ills[part] > 0 && within(l.since[part]) {
		n++
	}
	return n
}

// stalls measures by how much goroutines of this process run late: a machine that has no time for the tester has
// none for the processes under test either, and bounds on their recovery grow by that.
type stalls struct {
	mu   sync.Mutex // guards gaps
	gaps []gap
}

type gap struct {
	at   time.Time
	late time.Duration
}

const (
	stallPeriod = 20 * time.Millisecond
	stallLeast  = 10 * time.Millisecond // less is no stall
)

func (s *stalls) watch(done <-chan struct{}) {
	ticker := time.NewTicker(stallPeriod)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		now := time.Now()
		if late := now.Sub(last) - stallPeriod; late > stallLeast {
			s.mu.Lock()
			s.gaps = append(s.gaps, gap{now, late})
			s.mu.Unlock()
		}
		last = now
	}
}

// between returns how much time was lost between two times.
func (s *stalls) between(from, to time.Time) (lost time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.gaps {
		if g.at.After(from) && g.at.Before(to) {
			lost += g.late
		}
	}
	return lost
}

func TestTimelineCountsOverlappingTroubles(t *testing.T) {
	t.Parallel()
	l := newTimeline()
	start := time.Now()
	require.True(t, l.healthy("a", start, time.Now()))
	l.ill("a")
	l.ill("a")
	l.well("a")
	middle := time.Now()
	require.False(t, l.healthy("a", middle, time.Now().Add(time.Second)), "one of two is left")
	l.well("a")
	ended := time.Now()
	require.False(t, l.healthy("a", start, middle))
	require.True(t, l.healthy("a", ended, time.Now()))
	require.True(t, l.healthy("b", start, time.Now()))
}

func TestTimelineKnowsWhatWasOutAllTheTime(t *testing.T) {
	t.Parallel()
	l := newTimeline()
	start := time.Now()
	l.ill("a")
	ill := time.Now()
	require.True(t, l.out("a", ill, time.Now()))
	require.False(t, l.out("a", start.Add(-time.Second), time.Now()), "it was well at first")
	l.well("a")
	well := time.Now()
	l.ill("a")
	require.True(t, l.out("a", ill, ill))
	require.False(t, l.out("a", ill, time.Now().Add(time.Second)), "it was well for a moment")
	require.True(t, l.out("a", time.Now(), time.Now().Add(time.Second)))
	require.False(t, l.out("a", start.Add(-time.Second), well))
	require.False(t, l.out("b", start, well))
	require.Equal(t, 2, l.falls("a", start.Add(-time.Second), time.Now()))
	require.Equal(t, 1, l.falls("a", well, time.Now()))
	require.Equal(t, 0, l.falls("a", time.Now(), time.Now().Add(time.Second)))
	require.Equal(t, 0, l.falls("b", start, time.Now()))
}
