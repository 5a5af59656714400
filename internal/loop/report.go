package loop

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/store"
)

// lookEvery is how often the Reporter looks for what has changed, and writeEvery how often it writes what goes on failing.
var lookEvery, writeEvery = pace.Of(time.Second), pace.Of(5 * time.Second)

// writeTimeout bounds one write: the connection may be dead.
const writeTimeout = 2 * time.Second

var errSlow = errors.New("the database does not answer in time")

// Reporter writes to PostgreSQL which loops of a process have been failing for longer than Lasting: when that changes, and
// every few seconds while it lasts. Its pool must not be one that the work of other loops can exhaust.
type Reporter struct {
	Monitor  *Monitor
	Pool     *pgxpool.Pool
	Instance string // uuid of the process

	shown   []key     // that the database shows
	wroteAt time.Time // when it was told last
}

// Run reports until ctx ends.
func (r *Reporter) Run(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		failing := r.Monitor.Failing(Lasting)
		if !r.due(failing) {
			continue
		}
		err := r.write(ctx, failing)
		if ctx.Err() == nil {
			r.Monitor.Loop(Report, "").Done(err)
		}
	}
}

func (r *Reporter) due(failing []Failure) bool {
	if len(failing) > 0 && time.Since(r.wroteAt) >= writeEvery {
		return true
	}
	return !slices.Equal(keysOf(failing), r.shown)
}

func (r *Reporter) write(ctx context.Context, failing []Failure) error {
	ctx, cancel := context.WithTimeoutCause(ctx, writeTimeout, errSlow)
	defer cancel()
	p := store.LoopFailuresWriteParams{Instance: r.Instance, Loops: []string{}, Targets: []string{}, Errors: []string{}}
	for _, f := range failing {
		p.Loops = append(p.Loops, string(f.Loop))
		p.Targets = append(p.Targets, f.Target)
		p.FailingFor = append(p.FailingFor, f.For)
		p.SinceLast = append(p.SinceLast, f.Since)
		p.Failures = append(p.Failures, f.Failures)
		p.Errors = append(p.Errors, f.Text)
	}
	if err := store.New(r.Pool).LoopFailuresWrite(ctx, p); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	r.shown, r.wroteAt = keysOf(failing), time.Now()
	return nil
}

func keysOf(failing []Failure) []key {
	keys := make([]key, len(failing))
	for i, f := range failing {
		keys[i] = key{f.Loop, f.Target}
	}
	return keys
}
