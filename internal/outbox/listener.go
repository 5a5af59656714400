package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
)

// The channels that the product uses. Payloads are empty but for the self-test's.
const (
	ChannelWake      = "reconciler_wake"      // from capture triggers, to the sleeping leader
	ChannelControl   = "reconciler_control"   // from the functions that a person calls
	ChannelTick      = "reconciler_tick"      // from the leader, to other processes
	ChannelPublished = "reconciler_published" // from owners of streams, to processes with watchers
	ChannelTurn      = "reconciler_turn"      // from whoever changes an apply, to owners: their turn may have come
)

var channels = []string{ChannelWake, ChannelControl, ChannelTick, ChannelTurn, ChannelPublished}

const (
	// pingEvery finds a half-open connection, and keeps the session from being ended as silent.
	pingEvery = 10 * time.Second
	// selfTestTimeout is how long a notification may take before LISTEN is taken not to work.
	selfTestTimeout = 3 * time.Second
	// listenTimeout is how long LISTEN, or a notification on its way out, may take.
	listenTimeout  = 5 * time.Second
	retryListenMin = 200 * time.Millisecond
	retryListenMax = 10 * time.Second
	// pulseEvery is how often commands are looked for while nothing is heard.
	pulseEvery = 900 * time.Millisecond
	// retestEvery is how often LISTEN is tried again where it did not work.
	retestEvery = time.Minute
)

// Listener owns the LISTEN connection of a process and passes on what arrives. A notification is a hint that may be
// lost: whoever waits for one also polls.
type Listener struct {
	URL     string // direct, not through a pooler
	Name    string // application_name
	Off     bool   // notify = off: never connects
	Logger  *slog.Logger
	Metrics *metrics.Metrics
	Loops   *loop.Monitor   // nil: nobody is told what fails
	Fleet   *database.Fleet // that its connections belong to; nil: none

	// RetestEvery is the pause before LISTEN is tested again where it does not work; default 1 min. PingEvery is how often the
	// connection is tested where it does; default 10 s.
	RetestEvery, PingEvery time.Duration

	works atomic.Bool
	wakes atomic.Int64
	mu    sync.Mutex // guards subs
	subs  map[string][]chan struct{}
}

// Works reports whether LISTEN is known to work: a notification sent by this process came back.
func (l *Listener) Works() bool { return l.works.Load() }

// Subscribe returns a channel of size one that receives a value for notifications on a channel (several may be merged
// into one), and whenever notifications may have been missed.
func (l *Listener) Subscribe(channel string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subs == nil {
		l.subs = map[string][]chan struct{}{}
	}
	sub := make(chan struct{}, 1)
	l.subs[channel] = append(l.subs[channel], sub)
	return sub
}

// Unsubscribe ends a subscription.
func (l *Listener) Unsubscribe(channel string, sub <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subs[channel] = slices.DeleteFunc(l.subs[channel], func(c chan struct{}) bool { return c == sub })
}

func (l *Listener) signal(channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, sub := range l.subs[channel] {
		select {
		case sub <- struct{}{}:
		default:
		}
	}
}

func (l *Listener) signalAll() {
	for _, channel := range channels {
		l.signal(channel)
	}
}

// Run listens until its context ends, connecting again whenever the connection is lost.
func (l *Listener) Run(ctx context.Context) error {
	stop := l.pulse(ctx)
	defer stop()
	if l.Off {
		<-ctx.Done()
		return nil
	}
	pause := retryListenMin
	for ctx.Err() == nil {
		started := time.Now()
		err := l.session(ctx)
		l.setWorks(false)
		if ctx.Err() != nil {
			break
		}
		l.signalAll() // who waits for a call that does not come should poll now
		if time.Since(started) > time.Minute {
			pause = retryListenMin
		}
		wait := pause
		if errors.Is(err, errSwallowed) {
			wait = l.retest()
			l.Loops.Loop(loop.Listen, "").Succeeded() // polling is a mode, not a failure
		} else {
			l.Loops.Loop(loop.Listen, "").Failed(err)
		}
		l.Logger.Warn("listen_lost", "error", err, "retry_in", wait)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		pause = min(2*pause, retryListenMax)
	}
	return nil
}

func (l *Listener) retest() time.Duration { return cmp.Or(l.RetestEvery, retestEvery) }

func (l *Listener) ping() time.Duration { return cmp.Or(l.PingEvery, pingEvery) }

// pulse makes up for notifications of commands while LISTEN does not work: a person's pause() takes effect within a
// second all the same.
func (l *Listener) pulse(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(pulseEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if !l.Works() {
					l.signal(ChannelControl)
					l.signal(ChannelTurn)
				}
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (l *Listener) setWorks(works bool) {
	l.works.Store(works)
	value := 0.0
	if works {
		value = 1
	}
	l.Metrics.Listening.Set(value)
}

var errSwallowed = errors.New("LISTEN does not work here: a notification that this process sent did not come back (is direct_url a pooler?); changes are found by polling")

func (l *Listener) session(ctx context.Context) error {
	conn, err := database.Connect(ctx, l.URL, database.Options{Name: l.Name + " listen", Settings: database.Session(), Fleet: l.Fleet})
	if err != nil {
		return err
	}
	defer func() {
		closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closeCtx) // nothing is lost with it
	}()
	if err := subscribe(ctx, conn); err != nil {
		return err
	}
	if err := l.selfTest(ctx, conn); err != nil {
		return err
	}
	l.setWorks(true)
	l.Loops.Loop(loop.Listen, "").Succeeded()
	// A commit between the last session and this LISTEN notified nobody.
	l.signalAll()
	return l.receive(ctx, conn)
}

// subscribe executes LISTEN for every channel, which must not take long: the connection may be dead already.
func subscribe(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	for _, channel := range channels {
		if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
			return fmt.Errorf("listen on %s: %w", channel, err)
		}
	}
	return nil
}

// selfTest sends a notification through another connection and waits for it: through a pooler in transaction mode
// LISTEN succeeds and nothing ever arrives, and one's own session would hear itself even there.
func (l *Listener) selfTest(ctx context.Context, conn *pgx.Conn) error {
	token := fmt.Sprintf("self-test %d", time.Now().UnixNano())
	if err := l.notify(ctx, token); err != nil {
		return fmt.Errorf("send a notification: %w", err)
	}
	waitCtx, cancel := context.WithTimeout(ctx, selfTestTimeout)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(waitCtx)
		if err != nil {
			if waitCtx.Err() != nil && ctx.Err() == nil {
				return errSwallowed
			}
			return fmt.Errorf("wait for a notification: %w", err)
		}
		if n.Payload == token {
			return nil
		}
	}
}

// notify sends a notification through a connection of its own.
func (l *Listener) notify(ctx context.Context, token string) error {
	ctx, cancel := context.WithTimeout(ctx, database.ConnectTimeout+listenTimeout)
	defer cancel()
	conn, err := database.Connect(ctx, l.URL, database.Options{Name: l.Name + " listen self-test", Fleet: l.Fleet})
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT pg_notify($1, $2)", ChannelControl, token)
	return errors.Join(err, conn.Close(ctx))
}

func (l *Listener) receive(ctx context.Context, conn *pgx.Conn) error {
	pingAt := time.Now().Add(l.ping())
	for {
		waitCtx, cancel := context.WithDeadline(ctx, pingAt)
		n, err := conn.WaitForNotification(waitCtx)
		timedOut := waitCtx.Err() != nil
		cancel()
		switch {
		case err == nil:
			if n.Channel == ChannelWake {
				l.wakes.Add(1)
			}
			l.signal(n.Channel)
		case ctx.Err() != nil:
			return nil
		case !timedOut || conn.IsClosed():
			return fmt.Errorf("wait for notifications: %w", err)
		}
		// Notifications do not keep a session from being idle.
		if time.Now().Before(pingAt) {
			continue
		}
		pingCtx, cancel := context.WithTimeout(ctx, l.ping())
		err = conn.Ping(pingCtx)
		cancel()
		if err != nil {
			return fmt.Errorf("the listening connection is dead: %w", err)
		}
		pingAt = time.Now().Add(l.ping())
	}
}

// Wake passes on a wake-up that needs no notification, because it comes from this process.
func (l *Listener) Wake() { l.signal(ChannelWake) }

// Wakes returns how many notifications of writers have arrived so far.
func (l *Listener) Wakes() int64 { return l.wakes.Load() }
