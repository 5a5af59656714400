package measure

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

const (
	// callPatience is how long a change may take to reach the driver before it counts as lost.
	callPatience = time.Minute
	// writerRate is how many changes a second one connection makes: a commit on a slow disk must fit in between.
	writerRate = 100
)

// Pace says how changes are made: so many a second, each of another row, until there were Changes.
type Pace struct {
	Pool    *pgxpool.Pool
	Table   string // tracked, in the schema public
	Rows    int    // of the table
	Rate    int    // a second
	Changes int
	// Insert is the id of the first row that is inserted, where rows are inserted and not updated; 0: they are updated.
	Insert int
}

// statement is what makes one change. Its argument is id.
func (p Pace) statement() string {
	if p.Insert > 0 {
		return "INSERT INTO " + pgx.Identifier{"public", p.Table}.Sanitize() + " (id) VALUES ($1)"
	}
	return Load{Table: p.Table}.update()
}

// id is the row of a change. No row changes twice within seconds.
func (p Pace) id(change int) int {
	if p.Insert > 0 {
		return p.Insert + change
	}
	return change%p.Rows + 1
}

// Changes commits changes of single rows at a steady rate, from as many connections as it takes, each at its own
// moments. It returns the times from the moment that a commit is sent to the driver's call, in order of length.
func Changes(ctx context.Context, sink *Sink, pace Pace) ([]time.Duration, error) {
	writers := max(1, pace.Rate/writerRate)
	each := make([][]time.Duration, writers)
	group, groupCtx := errgroup.WithContext(ctx)
	for w := range writers {
		group.Go(func() (err error) {
			each[w], err = pace.write(groupCtx, sink, w, writers)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	times := slices.Concat(each...)
	slices.Sort(times)
	return times, nil
}

// write is one of several writers.
func (p Pace) write(ctx context.Context, sink *Sink, w, writers int) ([]time.Duration, error) {
	conn, err := p.Pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect a writer: %w", err)
	}
	defer conn.Release()
	sql := p.statement()
	ctx, cancel := context.WithCancel(ctx)
	var calls waiter
	defer calls.pending.Wait()
	defer cancel() // nobody asks any more for the calls of a writer that has failed
	if err := pause(ctx, time.Duration(w)*time.Second/time.Duration(p.Rate)); err != nil {
		return nil, err
	}
	ticker := time.NewTicker(time.Duration(writers) * time.Second / time.Duration(p.Rate))
	defer ticker.Stop()
	changes := max(1, p.Changes/writers)
	for i := range changes {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		id := p.id(i*writers + w)
		called := sink.Expect(strconv.Itoa(id))
		commit, err := begin(ctx, conn.Conn(), sql, id)
		if err != nil {
			return nil, err
		}
		sent := time.Now()
		if err := commit(); err != nil {
			return nil, err
		}
		calls.await(ctx, called, sent)
	}
	calls.pending.Wait()
	if lost := changes - len(calls.times); lost > 0 && ctx.Err() == nil {
		return nil, fmt.Errorf("%d of %d changes did not reach the driver within %s", lost, changes, callPatience)
	}
	return calls.times, ctx.Err()
}

// waiter waits for calls while its writer goes on.
type waiter struct {
	pending sync.WaitGroup
	mu      sync.Mutex // guards times
	times   []time.Duration
}

func (w *waiter) await(ctx context.Context, called <-chan time.Time, sent time.Time) {
	w.pending.Go(func() {
		timer := time.NewTimer(callPatience)
		defer timer.Stop()
		select {
		case at := <-called:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.times = append(w.times, at.Sub(sent))
		case <-ctx.Done():
		case <-timer.C:
		}
	})
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
