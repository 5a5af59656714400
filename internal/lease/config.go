package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/pace"
)

const (
	// HeartbeatInterval is the longest time between two heartbeats. Four seconds are next to no load, and leave
	// time for two more tries within the shortest lease.
	HeartbeatInterval = 4 * time.Second
	// RetryInterval is the pause after a heartbeat that failed.
	RetryInterval = 500 * time.Millisecond
	// MinTTL is how long a lease lives at least, and how long the leader's lives: two heartbeats that failed, and
	// time for a third. It bounds how long a target rests after its owner died.
	MinTTL = 9500 * time.Millisecond
	// ttlMargin is what a heartbeat may take until a call of the longest kind could no longer start.
	ttlMargin = 500 * time.Millisecond
	// missedMax is how many tries find a lease free and do not get it before that is reported.
	missedMax = 4
	// attemptTimeout bounds one statement. A half-open connection is noticed by it, while the lease still lives.
	attemptTimeout = 2 * time.Second
	// controlPause bounds what a flood of notifications can cost.
	controlPause = 20 * time.Millisecond
	// releasePatience is how long Stop tries to give back leases and to remove the row of this process, when rows are
	// locked or the server is away.
	releasePatience = 5 * time.Second
)

// steadyAfter is when a run that has not failed counts as one that works.
var steadyAfter = pace.Of(10 * time.Second)

// Target is one target of this process's config.
type Target struct {
	Name        string
	Driver      string        // shown in psql
	Fingerprint string        // of driver and options; another one means that everything must be applied again
	Place       string        // where the options lead, without secrets; "": the driver names no place
	PlaceKey    string        // equal for equal places; "": the place is a secret
	CallTimeout time.Duration // the longest that one driver call may take
	MaxDeletes  *int64        // guard, shown in psql; nil for none
	MaxFraction *float64      // guard, shown in psql; nil for none
}

// Config is what a Manager needs. Pool, Instance and RunTarget must be given.
type Config struct {
	// Pool belongs to the Manager alone, so that work cannot starve its heartbeats. Two connections are enough. It
	// must not lead through a pooler that answers for a server that is away.
	Pool *pgxpool.Pool
	// Instance is a UUID that no other process has, and that a process does not have again after a restart.
	Instance string
	Name     string // host:pid or the like, shown in psql
	Version  string // of the binary, shown in psql
	Source   string // where its config is: a process replaces those with the same source that share a target with it. Default: Name
	Targets  []Target
	Logger   *slog.Logger // default: none

	// RunTarget owns a target from call to return. It returns nil when it has drained: no call is under way and all
	// results are written. With an error (or a panic) the lease is kept and RunTarget called again after a pause of
	// 1 to 30 s, under a new term and with Clean false: results may be unwritten, and a write of the failed run
	// that is still on its way must not land in the next one. No call may be under way after it has returned.
	RunTarget func(ctx context.Context, grant *Grant) error
	// RunLeader leads the tick from call to return; its context ends with ErrStopped when the Manager stops. Errors
	// and panics are handled as those of RunTarget. nil: this process never leads.
	RunLeader func(ctx context.Context, term int64) error
	// Control fires when somebody may have released or ordered something (NOTIFY reconciler_control): a heartbeat
	// is then due at once. nil: only time does that.
	Control <-chan struct{}
	// Silent is called when the database did not answer a heartbeat in time. It must not block. Nil: nobody is told.
	Silent func()
	// Heard is called when a heartbeat succeeds after one or more have failed. It must not block. Optional.
	Heard func()
	// Loops is told of what fails. Nil: nobody is.
	Loops *loop.Monitor

	// Timing is for tests; the zero value is right.
	Timing Timing
	// Clock is a monotonic clock from any starting point, for tests.
	Clock func() time.Duration
}

// Timing holds durations that tests shorten. Zero fields mean their defaults.
type Timing struct {
	Heartbeat  time.Duration // HeartbeatInterval
	Retry      time.Duration // RetryInterval
	MinTTL     time.Duration // MinTTL; not less than two heartbeats
	Live       time.Duration // MinTTL: a process that was not seen for longer gets no share
	Gone       time.Duration // 60 s: a process that was not seen for longer is removed
	BackoffMin time.Duration // 1 s: pause after a run's first failure, doubled by each further one that is not for want of the database
	BackoffMax time.Duration // 30 s; a run that lasted as long starts the count anew
	StopGrace  time.Duration // 5 s: Stop waits no longer for runs whose context has ended
}

func (t Timing) withDefaults() Timing {
	orDefault := func(value *time.Duration, byDefault time.Duration) {
		if *value == 0 {
			*value = byDefault
		}
	}
	orDefault(&t.Heartbeat, HeartbeatInterval)
	orDefault(&t.Retry, RetryInterval)
	orDefault(&t.MinTTL, MinTTL)
	// Not longer: whoever has just taken over from a dead process must not hand half of it back to it.
	orDefault(&t.Live, t.MinTTL)
	orDefault(&t.Gone, time.Minute)
	orDefault(&t.BackoffMin, pace.Of(time.Second))
	orDefault(&t.BackoffMax, pace.Of(30*time.Second))
	orDefault(&t.StopGrace, 5*time.Second)
	return t
}

// overdue is how long a process may be silent whose heartbeats do not fail. It is shorter than the rest of a lease
// whose owner died, so whoever died with it is overdue when the lease expires.
func (t Timing) overdue() time.Duration { return t.Heartbeat + 3*t.Retry }

func (t Timing) ttl(callTimeout time.Duration) time.Duration {
	return max(t.MinTTL, callTimeout+t.Heartbeat+ttlMargin)
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	clock := c.Clock
	if clock == nil {
		clock = elapsed
	}
	start := clock()
	c.Clock = func() time.Duration { return clock() - start + 1 } // above zero, which stands for never and for long ago
	c.Timing = c.Timing.withDefaults()
	c.Source = cmp.Or(c.Source, c.Name)
	return c
}

var uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// validate reports every problem of a config that withDefaults has been applied to.
func (c Config) validate() error {
	var problems []error
	complain := func(when bool, format string, args ...any) {
		if when {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	complain(c.Pool == nil, "Pool is missing")
	complain(c.RunTarget == nil, "RunTarget is missing")
	complain(!uuidPattern.MatchString(c.Instance), "Instance %q is not a UUID in lower case", c.Instance)
	complain(c.Timing.MinTTL < 2*c.Timing.Heartbeat, "MinTTL %v is less than two heartbeats of %v", c.Timing.MinTTL, c.Timing.Heartbeat)
	seen := map[string]bool{}
	for i, t := range c.Targets {
		complain(t.Name == "", "Targets[%d] has no name", i)
		complain(seen[t.Name], "Targets[%d]: there are two targets of the name %q", i, t.Name)
		complain(t.CallTimeout < 0, "Targets[%d]: CallTimeout %v is negative", i, t.CallTimeout)
		seen[t.Name] = true
	}
	if len(problems) > 0 {
		return fmt.Errorf("ownership cannot start: %w", errors.Join(problems...))
	}
	return nil
}
