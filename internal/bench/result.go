package bench

import (
	"fmt"

	"github.com/pgreconciler/reconciler/internal/measure"
)

// Result is what a run found.
type Result struct {
	Server  *Server  `json:"server"`
	Writers int      `json:"writers"`
	Rounds  int      `json:"rounds"`
	Length  string   `json:"length"`
	Poll    string   `json:"poll_interval"`
	Figures []Figure `json:"figures"`
	Verdict Verdict  `json:"verdict"`
}

// Figure is something measured and, where there is one, what it is compared with in the same rounds.
type Figure struct {
	What    string          `json:"what"`
	Unit    string          `json:"unit"`
	Value   measure.Spread  `json:"value"`
	Against string          `json:"against,omitempty"`
	Other   *measure.Spread `json:"other,omitempty"`
	// Ratio is value over other, round by round.
	Ratio *measure.Spread `json:"ratio,omitempty"`
}

func figure(what, unit string, values []float64) Figure {
	return Figure{What: what, Unit: unit, Value: measure.SpreadOf(values)}
}

// over adds what it is compared with.
func (s samples) over(of sample, what, unit string, other sample, against string) Figure {
	f := figure(what, unit, s[of])
	f.Against = against
	spread, ratio := measure.SpreadOf(s[other]), measure.SpreadOf(measure.Ratios(s[of], s[other]))
	f.Other, f.Ratio = &spread, &ratio
	return f
}

const (
	perSecond    = "commits/s"
	milliseconds = "ms"
)

func counted(writers int) string {
	if writers == 1 {
		return "1 writer"
	}
	return fmt.Sprintf("%d writers", writers)
}

func (l *lab) result(server *Server) *Result {
	return &Result{
		Server: server, Writers: l.opts.Writers, Rounds: l.opts.Rounds, Length: l.opts.Length.String(), Poll: l.opts.Poll.String(),
		Figures: append(l.commitFigures(), l.latencyFigures()...), Verdict: Advise(l.measured(server)),
	}
}

// commitFigures are those of what tracking costs writers.
func (l *lab) commitFigures() []Figure {
	var figures []Figure
	for _, in := range []struct {
		state state
		words string
	}{{notified, "a process reads"}, {polled, "it reads, NOTIFY off"}, {unread, "none runs"}} {
		for _, writers := range l.opts.crowds() {
			figures = append(figures, l.samples.over(
				sample{what: tracked, state: in.state, writers: writers}, fmt.Sprintf("tracked, %s, %s", in.words, counted(writers)), perSecond,
				sample{what: untracked, state: in.state, writers: writers}, "untracked"))
		}
	}
	return figures
}

// latencyFigures are those of how soon the driver is called, and of what a commit takes.
func (l *lab) latencyFigures() []Figure {
	var figures []Figure
	for _, in := range []struct {
		state state
		words string
	}{{notified, "on"}, {polled, "off"}} {
		for _, rate := range []int{slowRate, fastRate} {
			for _, point := range []string{p50, p99} {
				figures = append(figures, l.samples.over(
					sample{what: call, state: in.state, rate: rate, point: point}, fmt.Sprintf("commit to call, NOTIFY %s, %d/s, %s", in.words, rate, point), milliseconds,
					sample{what: bareTrip, point: point}, "bare NOTIFY"))
			}
		}
	}
	for _, point := range []string{p50, p99} {
		figures = append(figures, l.samples.over(
			sample{what: commit, point: point}, "a commit alone, "+point, milliseconds,
			sample{what: lazyOne, point: point}, "no wait for the disk"))
	}
	return figures
}

// measured is what the verdict rests on.
func (l *lab) measured(server *Server) Measured {
	crowds := l.opts.crowds()
	many := crowds[len(crowds)-1]
	ratios := func(in state, writers int) []float64 {
		return measure.Ratios(l.samples[sample{what: tracked, state: in, writers: writers}], l.samples[sample{what: untracked, state: in, writers: writers}])
	}
	costs := func(in state) Ratios {
		return Ratios{One: measure.SpreadOf(ratios(in, 1)), Many: measure.SpreadOf(ratios(in, many))}
	}
	over := func(writers int) measure.Spread {
		return measure.SpreadOf(measure.Ratios(ratios(notified, writers), ratios(polled, writers)))
	}
	latency := func(in state, rate int) Latency {
		of := sample{what: call, state: in, rate: rate}
		return l.samples.latency(of)
	}
	var alone []float64 // untracked commits in every state: the same each time, but for what others do
	for _, in := range []state{unread, notified, polled} {
		alone = append(alone, l.samples[sample{what: untracked, state: in, writers: many}]...)
	}
	return Measured{
		Writers: many, Rounds: l.opts.Rounds, Poll: l.opts.Poll, Fsync: server.Fsync, Prepared: server.Prepared,
		Read: costs(notified), Unread: costs(unread), NotifyOverPolling: Ratios{One: over(1), Many: over(many)},
		On:        map[int]Latency{slowRate: latency(notified, slowRate), fastRate: latency(notified, fastRate)},
		Off:       map[int]Latency{slowRate: latency(polled, slowRate), fastRate: latency(polled, fastRate)},
		Untracked: measure.SpreadOf(alone),
	}
}

func (s samples) latency(of sample) Latency {
	at := func(point string) measure.Spread {
		of.point = point
		return measure.SpreadOf(s[of])
	}
	return Latency{P50: at(p50), P99: at(p99)}
}

// inWords writes a duration of so many milliseconds.
func inWords(ms float64) string {
	if ms >= 1000 {
		return measure.Short(ms/1000) + " s"
	}
	return measure.Short(ms) + " ms"
}
