package bench

import (
	"fmt"
	"time"

	"github.com/pgreconciler/reconciler/internal/measure"
)

const (
	// dearFrom is the ratio of commits, with NOTIFY over without, below which it costs the writers too much, in every round.
	dearFrom = .9
	// soonerFrom is the part of the latency without NOTIFY that must be left with it, at most, for it to bring anything.
	soonerFrom = .8
	// restlessFrom is how many times the slowest rate of untracked commits the fastest may be before somebody else is
	// taken to have been at work.
	restlessFrom = 1.5
)

// Ratios are commits a second with something over those without, for one writer and for many.
type Ratios struct{ One, Many measure.Spread }

// Latency is the time from commit to driver call, in milliseconds.
type Latency struct{ P50, P99 measure.Spread }

// Measured is what Advise goes by.
type Measured struct {
	Writers   int // many
	Rounds    int
	Poll      time.Duration // pause between two looks with NOTIFY off
	Fsync     bool
	Prepared  bool // the server allows prepared transactions
	Read      Ratios
	Unread    Ratios
	Untracked measure.Spread // commits a second, of all rounds and states
	// NotifyOverPolling are tracked commits with NOTIFY over those without it.
	NotifyOverPolling Ratios
	On, Off           map[int]Latency // by changes a second, NOTIFY on and off
}

// Verdict is what follows from the figures.
type Verdict struct {
	// Notify is what it should be: "on" or "off".
	Notify string `json:"notify"`
	// CostPercent is how much longer a tracked commit takes than an untracked one while a process reads.
	CostPercent Cost `json:"cost_percent"`
	// LatencyMS is what to expect from commit to driver call with Notify as advised, at the slow rate.
	LatencyMS Expected `json:"latency_ms"`
	// Sentences say all that for a person, and what to beware of.
	Sentences []string `json:"sentences"`
}

// Cost is for one writer and for many.
type Cost struct {
	One  measure.Spread `json:"one_writer"`
	Many measure.Spread `json:"all_writers"`
}

// Expected are medians of the rounds.
type Expected struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Advise turns figures into advice. It knows nothing but them.
func Advise(m Measured) Verdict {
	v := Verdict{
		Notify: "on", CostPercent: Cost{One: percent(m.Read.One), Many: percent(m.Read.Many)},
		Sentences: append(m.costSentences(), m.latencySentence()),
	}
	now, sentence := m.notify()
	expected := m.On[slowRate]
	if !now {
		v.Notify, expected = "off", m.Off[slowRate]
	}
	v.LatencyMS = Expected{P50: expected.P50.Median, P99: expected.P99.Median}
	v.Sentences = append(append(v.Sentences, sentence), m.caveats()...)
	return v
}

// percent is how much longer something takes whose rate is a ratio of another: half as many are 100 % longer.
func percent(ratio measure.Spread) measure.Spread {
	longer := func(r float64) float64 { return 100 * (1/r - 1) }
	return measure.Spread{Median: longer(ratio.Median), Min: longer(ratio.Max), Max: longer(ratio.Min)}
}

// costWords writes a cost, or that it is lost in the noise: in some round the commits were no slower.
func costWords(cost measure.Spread) string {
	if cost.Min <= 0 {
		return fmt.Sprintf("nothing that stands out from the noise (%.0f to %.0f %%)", cost.Min, cost.Max)
	}
	return fmt.Sprintf("%.0f %% (%.0f to %.0f)", cost.Median, cost.Min, cost.Max)
}

func (m Measured) costSentences() []string {
	words := func(when string, of Ratios) string {
		text := fmt.Sprintf("Tracking costs each commit, %s, %s with one writer", when, costWords(percent(of.One)))
		if m.Writers > 1 {
			text += fmt.Sprintf(", and %s with %d at full speed", costWords(percent(of.Many)), m.Writers)
		}
		return text + "."
	}
	return []string{words("while a process reads", m.Read), words("while none runs", m.Unread)}
}

func (m Measured) latencySentence() string {
	slow, fast := m.On[slowRate], m.On[fastRate]
	return fmt.Sprintf("With NOTIFY, expect the driver call %s after the commit at %d changes/s (p99 %s), and %s at %d (p99 %s).",
		inWords(slow.P50.Median), slowRate, inWords(slow.P99.Median), inWords(fast.P50.Median), fastRate, inWords(fast.P99.Median))
}

// notify says whether NOTIFY should be on, and why.
func (m Measured) notify() (on bool, sentence string) {
	with, without := m.On[slowRate].P50.Median, m.Off[slowRate].P50.Median
	polling := fmt.Sprintf("%s after the commit (polling every %s)", inWords(without), m.Poll)
	const how = "SELECT reconciler.set_notify(false), and notify: off in the configuration."
	if with > soonerFrom*without {
		return false, fmt.Sprintf("NOTIFY: switch it off, for it brings calls hardly sooner: %s, instead of %s. %s", inWords(with), polling, how)
	}
	cost, writers, dear := m.notifyCost()
	if dear {
		return false, fmt.Sprintf("NOTIFY: switch it off if a call %s is soon enough, instead of %s: it costs each commit %s with %s. %s",
			polling, inWords(with), costWords(cost), counted(writers), how)
	}
	return true, fmt.Sprintf("NOTIFY: leave it on. It costs each commit %s with %s, and without it the call comes %s, instead of %s.",
		costWords(cost), counted(writers), polling, inWords(with))
}

// notifyCost is what NOTIFY costs a commit, in percent, where it costs more; dear only where every round shows it: what it
// brings is certain.
func (m Measured) notifyCost() (cost measure.Spread, writers int, dear bool) {
	worst, writers := m.NotifyOverPolling.One, 1
	if many := m.NotifyOverPolling.Many; many.Median < worst.Median {
		worst, writers = many, m.Writers
	}
	return percent(worst), writers, worst.Max < dearFrom
}

// caveats are what else a person should know before trusting the figures.
func (m Measured) caveats() []string {
	var sentences []string
	if m.Prepared {
		sentences = append(sentences, "This server allows PREPARE TRANSACTION, which fails after a NOTIFY: who prepares transactions that change tracked rows needs it off.")
	}
	if !m.Fsync {
		sentences = append(sentences, "fsync is off on this server: commits do not wait for the disk. With fsync on, every figure is another one.")
	}
	if m.Rounds == 1 {
		sentences = append(sentences, "One round cannot tell a difference from noise: measure with more --rounds.")
	}
	if m.Untracked.Max > restlessFrom*m.Untracked.Min {
		sentences = append(sentences, fmt.Sprintf("Untracked commits alone varied between %s and %s a second, so something else is at work on this server: "+
			"take the ratios with care, or measure longer (--rounds, --length).", measure.Short(m.Untracked.Min), measure.Short(m.Untracked.Max)))
	}
	return sentences
}
