package bench

import (
	"log/slog"
	"time"
)

// Defaults and bounds of what a person can choose.
const (
	WritersDefault = 16
	WritersMax     = 256
	RoundsDefault  = 3
	RoundsMax      = 50
	LengthDefault  = 2 * time.Second
	LengthMin      = 50 * time.Millisecond
	LengthMax      = time.Minute
)

const (
	// slowRate and fastRate are the rates, in changes a second, at which latency is measured. At both the leader sleeps
	// and is notified, unless the disk is so slow that commits queue.
	slowRate = 20
	fastRate = 200
	// slowLengths is how many lengths a round of the slow rate takes, for there are few changes in one.
	slowLengths = 3
	// pollMax is the longest poll_interval that is measured; a longer one would only take longer.
	pollMax = time.Second
)

// Options say what to measure, and where.
type Options struct {
	URL     string        // of the user's database, without a pooler in between
	Writers int           // that write at once; one writer is always measured too
	Rounds  int           // of everything, interleaved
	Length  time.Duration // of one measurement of commits in a round
	Poll    time.Duration // poll_interval, for NOTIFY off
	Version string        // of the binary
	// Note tells a person how far things are. Nil: nobody is told.
	Note func(format string, args ...any)
	// Logger takes the warnings of the process that is measured. Default: none.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Note == nil {
		o.Note = func(string, ...any) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Poll = min(o.Poll, pollMax)
	return o
}

// crowds are the numbers of writers that are measured.
func (o Options) crowds() []int {
	if o.Writers == 1 {
		return []int{1}
	}
	return []int{1, o.Writers}
}

// rows is how many rows each table has.
func (o Options) rows() int { return max(rowsMin, o.Writers*rowsPerWriter) }

// duration is about how long the rounds take.
func (o Options) duration() time.Duration {
	const states, tables = 3, 2
	commits := states*tables*len(o.crowds()) + 1
	latency := 3*slowLengths + 2
	return time.Duration(o.Rounds*(commits+latency)) * o.Length
}

// changes is how many changes a round makes at a rate.
func (o Options) changes(rate, lengths int) int {
	const fewest = 5
	return max(fewest, int(float64(rate*lengths)*o.Length.Seconds()))
}
