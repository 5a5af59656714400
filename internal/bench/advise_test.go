package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/measure"
)

func spread(low, mid, high float64) measure.Spread {
	return measure.Spread{Median: mid, Min: low, Max: high}
}

func latency(p50, p99 float64) Latency {
	return Latency{P50: spread(p50*.9, p50, p50*1.1), P99: spread(p99*.9, p99, p99*1.1)}
}

// usual is what a server with a good disk gives.
func usual() Measured {
	return Measured{
		Writers: 16, Rounds: 3, Poll: 200 * time.Millisecond, Fsync: true,
		Read:              Ratios{One: spread(.78, .8, .82), Many: spread(.7, .75, .76)},
		Unread:            Ratios{One: spread(.8, .82, .85), Many: spread(.75, .8, .8)},
		Untracked:         spread(9000, 10_000, 11_000),
		NotifyOverPolling: Ratios{One: spread(.97, .99, 1.02), Many: spread(.94, .98, 1.01)},
		On:                map[int]Latency{slowRate: latency(.91, 2.3), fastRate: latency(1.1, 3)},
		Off:               map[int]Latency{slowRate: latency(102, 199), fastRate: latency(103, 200)},
	}
}

func TestAdvise(t *testing.T) {
	t.Parallel()
	costs := []string{
		"Tracking costs each commit, while a process reads, 25 % (22 to 28) with one writer, and 33 % (32 to 43) with 16 at full speed.",
		"Tracking costs each commit, while none runs, 22 % (18 to 25) with one writer, and 25 % (25 to 33) with 16 at full speed.",
		"With NOTIFY, expect the driver call 0.91 ms after the commit at 20 changes/s (p99 2.30 ms), and 1.10 ms at 200 (p99 3.00 ms).",
	}
	const leave = "NOTIFY: leave it on. It costs each commit nothing that stands out from the noise (-1 to 6 %) with 16 writers, " +
		"and without it the call comes 102.0 ms after the commit (polling every 200ms), instead of 0.91 ms."
	cost := Cost{One: percent(spread(.78, .8, .82)), Many: percent(spread(.7, .75, .76))}
	on, off := Expected{P50: .91, P99: 2.3}, Expected{P50: 102, P99: 199}

	for name, test := range map[string]struct {
		change func(*Measured)
		want   Verdict
	}{
		"LeavesNotifyOnWhereItCostsNothing": {
			func(*Measured) {},
			Verdict{"on", cost, on, append(slices.Clone(costs), leave)},
		},
		"LeavesNotifyOnWhereItCostsLittle": {
			func(m *Measured) { m.NotifyOverPolling.Many = spread(.91, .95, .97) },
			Verdict{"on", cost, on, append(slices.Clone(costs), "NOTIFY: leave it on. It costs each commit 5 % (3 to 10) with 16 writers, "+
				"and without it the call comes 102.0 ms after the commit (polling every 200ms), instead of 0.91 ms.")},
		},
		"LeavesNotifyOnWhereNotEveryRoundShowsItsCost": {
			func(m *Measured) { m.NotifyOverPolling.Many = spread(.5, .625, .95) },
			Verdict{"on", cost, on, append(slices.Clone(costs), "NOTIFY: leave it on. It costs each commit 60 % (5 to 100) with 16 writers, "+
				"and without it the call comes 102.0 ms after the commit (polling every 200ms), instead of 0.91 ms.")},
		},
		"SwitchesNotifyOffWhereManyWritersPayForIt": {
			func(m *Measured) { m.NotifyOverPolling.Many = spread(.4, .5, .625) },
			Verdict{"off", cost, off, append(slices.Clone(costs), "NOTIFY: switch it off if a call 102.0 ms after the commit (polling every 200ms) is soon enough, instead of 0.91 ms: "+
				"it costs each commit 100 % (60 to 150) with 16 writers. SELECT reconciler.set_notify(false), and notify: off in the configuration.")},
		},
		"SwitchesNotifyOffWhereOneWriterPaysForIt": {
			func(m *Measured) { m.NotifyOverPolling.One = spread(.75, .8, .8) },
			Verdict{"off", cost, off, append(slices.Clone(costs), "NOTIFY: switch it off if a call 102.0 ms after the commit (polling every 200ms) is soon enough, instead of 0.91 ms: "+
				"it costs each commit 25 % (25 to 33) with 1 writer. SELECT reconciler.set_notify(false), and notify: off in the configuration.")},
		},
		"SwitchesNotifyOffWhereItBringsNothing": {
			func(m *Measured) { m.Poll, m.Off[slowRate] = 2*time.Millisecond, latency(1.1, 2) },
			Verdict{"off", cost, Expected{P50: 1.1, P99: 2}, append(slices.Clone(costs), "NOTIFY: switch it off, for it brings calls hardly sooner: 0.91 ms, "+
				"instead of 1.10 ms after the commit (polling every 2ms). SELECT reconciler.set_notify(false), and notify: off in the configuration.")},
		},
		"SaysWhatToBewareOf": {
			func(m *Measured) {
				m.Fsync, m.Prepared, m.Rounds, m.Untracked = false, true, 1, spread(5000, 10_000, 12_000)
			},
			Verdict{"on", cost, on, append(slices.Clone(costs), leave,
				"This server allows PREPARE TRANSACTION, which fails after a NOTIFY: who prepares transactions that change tracked rows needs it off.",
				"fsync is off on this server: commits do not wait for the disk. With fsync on, every figure is another one.",
				"One round cannot tell a difference from noise: measure with more --rounds.",
				"Untracked commits alone varied between 5000 and 12000 a second, so something else is at work on this server: take the ratios with care, or measure longer (--rounds, --length).")},
		},
		"SaysNothingOfManyWhereOneWrites": {
			func(m *Measured) {
				m.Writers, m.Read.Many, m.Unread.Many, m.NotifyOverPolling.Many = 1, m.Read.One, m.Unread.One, m.NotifyOverPolling.One
			},
			Verdict{"on", Cost{One: cost.One, Many: cost.One}, on, []string{
				"Tracking costs each commit, while a process reads, 25 % (22 to 28) with one writer.",
				"Tracking costs each commit, while none runs, 22 % (18 to 25) with one writer.",
				costs[2],
				"NOTIFY: leave it on. It costs each commit nothing that stands out from the noise (-2 to 3 %) with 1 writer, " +
					"and without it the call comes 102.0 ms after the commit (polling every 200ms), instead of 0.91 ms.",
			}},
		},
		"SaysThatACostIsLostInTheNoise": {
			func(m *Measured) { m.Read.One = spread(.8, .95, 1.25) },
			Verdict{"on", Cost{One: percent(spread(.8, .95, 1.25)), Many: cost.Many}, on, []string{
				"Tracking costs each commit, while a process reads, nothing that stands out from the noise (-20 to 25 %) with one writer, and 33 % (32 to 43) with 16 at full speed.",
				costs[1], costs[2], leave,
			}},
		},
		"SwitchesToSecondsWherePollingTakesThem": {
			func(m *Measured) { m.Poll, m.Off[slowRate] = time.Second, latency(1500, 2500) },
			Verdict{"on", cost, on, append(slices.Clone(costs), "NOTIFY: leave it on. It costs each commit nothing that stands out from the noise (-1 to 6 %) with 16 writers, "+
				"and without it the call comes 1.50 s after the commit (polling every 1s), instead of 0.91 ms.")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := usual()
			test.change(&m)
			require.Equal(t, test.want, Advise(m))
		})
	}
}
