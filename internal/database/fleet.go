package database

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// maxSilence is for how long the server may be silent while an answer is due. No statement takes longer.
	maxSilence = statementTimeout + 10*time.Second
	// suspectFor is how long a connection may be silent after a heartbeat has timed out and a later one has succeeded. It may be half
	// open.
	suspectFor = 3 * time.Second
	// resetPause is the least time between two resets of all pools for want of answers.
	resetPause = 5 * time.Second
	// lookEvery is how often the Fleet looks for connections that are silent for too long.
	lookEvery = time.Second
)

// Fleet is all connections of one process: pools, listener and leader. It sees to it that all of them lead to one server, and
// ends those that do not answer any more, so that nobody waits for them.
type Fleet struct {
	logger *slog.Logger
	start  time.Time

	mu      sync.Mutex // guards what follows
	pools   []*pgxpool.Pool
	sockets map[*socket]bool
	heardAt time.Duration // since start, when the server answered after a silence; 0: never
	ended   bool          // there are no connections any more
	resetAt time.Duration // since start, for want of answers; 0: never
	known   Server        // that all connections lead to
	// refusedAt is when the log named a refused server.
	refusedAt map[Server]time.Duration
}

// NewFleet returns a Fleet without connections. Connections belong to it when Options name it.
func NewFleet(logger *slog.Logger) *Fleet {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Fleet{logger: logger, start: time.Now(), sockets: map[*socket]bool{}, refusedAt: map[Server]time.Duration{}}
}

// Run ends connections that are silent for too long, until ctx ends.
func (f *Fleet) Run(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f.look(f.elapsed())
		}
	}
}

// elapsed is never 0, which stands for never.
func (f *Fleet) elapsed() time.Duration { return time.Since(f.start) + 1 }

// Suspect reports that the server did not answer on some connection in time. Connections that are not in use are given up at once,
// those on which an answer is due if none comes within seconds after Heard: a server that stands still as a whole answers in the
// end, and on another connection it would not answer either.
func (f *Fleet) Suspect() {
	now := f.elapsed()
	f.mu.Lock()
	for s := range f.sockets {
		s.suspect.CompareAndSwap(0, int64(now))
	}
	reset := f.resetAt == 0 || now-f.resetAt >= resetPause
	if reset {
		f.resetAt = now
	}
	f.mu.Unlock()
	if reset {
		f.resetPools()
	}
}

// Heard reports that the server has answered on some connection after Suspect.
func (f *Fleet) Heard() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heardAt = f.elapsed()
}

func (f *Fleet) resetPools() {
	f.mu.Lock()
	pools := f.pools
	f.mu.Unlock()
	for _, pool := range pools {
		pool.Reset()
	}
}

// look ends what is silent for too long at a time, as elapsed gives it.
func (f *Fleet) look(now time.Duration) {
	f.mu.Lock()
	var silent []*socket
	for s := range f.sockets {
		if s.silent(now, f.heardAt) {
			silent = append(silent, s)
		}
	}
	f.mu.Unlock()
	for _, s := range silent {
		f.logger.Warn("connection_silent", "server", s.addr, "for", (now - s.since()).Round(time.Millisecond), "effect", "it is given up")
		s.end(errSilent)
	}
}

// End ends every connection, and lets none begin: a pool that is closed waits for a server that may not answer any more.
// It returns how many it ended.
func (f *Fleet) End() int {
	f.mu.Lock()
	f.ended = true
	left := slices.Collect(maps.Keys(f.sockets))
	f.mu.Unlock()
	for _, s := range left {
		s.end(errEnded)
	}
	return len(left)
}

func (f *Fleet) addPool(pool *pgxpool.Pool) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pools = append(slices.Clip(f.pools), pool)
}
