package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// world is a database with writers, replicas and targets, made from one seed.
type world struct {
	t         *testing.T
	plan      *plan
	cluster   *pgtest.Cluster
	db        *pgtest.DB
	pool      *pgxpool.Pool // the tester's
	dir, temp string
	began     time.Time
	disk      *smallDisk // of the file target; nil: it uses the test's directory
	replicas  []*replica
	endpoints []*endpoint // in the order of the plan's targets; the last target has none
	watchers  []*watcher  // of the last target, if it is a stream
	hosts     []*host     // where agents run
	agent     *agent      // which is one of them; nil: the stream does not wait for one
	journal   journal
	timeline  *timeline
	stalls    stalls
	owners    owners
	backs     []time.Time   // when the crashed server was back
	losses    []loss        // owners that were killed or frozen
	stopped   bool          // the server is down, by a fault
	chance    *rand.Rand    // of the injector
	points    *rand.Rand    // of the injector, for the crash points of applies
	retried   map[int64]int // how often an apply was tried again at the end
	disarmed  bool          // processes die no more by themselves

	// What novelties need, where the plan has them.
	hostile     *rand.Rand     // which rows, settings and connections
	variants    map[string]int // of the definitions
	tablesOf    string         // role that owns the tables; empty: the role that runs the tests
	pooler      *pgtest.Pooler
	clock       *pgtest.Clock   // of the server
	standby     *pgtest.Cluster // nil: the server has none
	promoted    bool
	old         *pgtest.Cluster // primary that came back after a failover
	dumped      string          // file
	asDumped    map[string]int  // variants, of then
	drainedThen string          // drained, of then
	hostileGone []string        // guarded by mu; statements that delete hostile rows
	keptUntil   time.Time       // calls that began before may be for objects that untrack() has left in their targets
	judgeFrom   time.Time       // what was called before belongs to a history that was undone
	wishes      wishes
	owed        []string // statements that end faults, and could not be executed yet

	writerPIDs pidSet

	mu         sync.Mutex // guards what follows
	notes      []string
	violations []violation
	counts     map[string]int // sums over worlds
	peaks      map[string]int // the greatest of all worlds
	recoveries []recovery
	approved   time.Time // when held deletes were approved for the first time
	changes    []change  // what was committed, once it was read
	drained    string    // target that was given up
	now        string    // URL of the database
}

// violation is something that must not happen.
type violation struct {
	What   string
	Text   string
	Object object    // whose calls are worth reading
	At     time.Time // of the call
}

func newWorld(t *testing.T, cluster *pgtest.Cluster, p *plan) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{
		t: t, plan: p, cluster: cluster, dir: dir, temp: filepath.Join(dir, "tmp"), began: time.Now(),
		hostile: p.stream(streamHostile), variants: map[string]int{},
		chance: p.stream(300), points: p.stream(streamPoints), retried: map[int64]int{}, timeline: newTimeline(), counts: map[string]int{}, peaks: map[string]int{},
	}
	require.NoError(t, os.Mkdir(w.temp, 0o700))
	if p.has(faultFailover) {
		w.cluster = newPrimary(t)
	}
	if p.has(faultClock) {
		w.clock = cluster.FakeClock(t)
	}
	w.db = w.cluster.New(t)
	w.now = w.db.URL
	w.db.Exec(t, memory)
	if p.kubernetes() {
		w.db.Exec(t, manifests)
	}
	w.pool = w.mildPool()
	w.setUp()
	if p.has(faultFailover) {
		w.startStandby()
	}
	if !p.Notify {
		w.db.Exec(t, `SELECT reconciler.set_notify(false)`)
	}
	for i := range p.Targets[:len(p.Targets)-1] {
		e, err := newEndpoint(w, i)
		require.NoError(t, err)
		t.Cleanup(e.close)
		w.endpoints = append(w.endpoints, e)
	}
	if p.Disk {
		w.disk = newSmallDisk(t, diskSize)
	}
	for i := range p.Replicas {
		w.addReplica(i)
	}
	for number, targets := range p.hosts() {
		w.addHost(number, targets)
	}
	direct := w.db.URL
	if w.standby != nil {
		direct = pgtest.URLs(w.db.Name, w.standby, w.cluster) + takesWrites
	}
	w.configure("direct", direct, direct)
	t.Cleanup(w.show)
	return w
}

func (w *world) addReplica(number int) {
	proxy, err := newProxy(w.urls()...)
	require.NoError(w.t, err)
	r := &replica{world: w, name: fmt.Sprintf("r%d", number), proxy: proxy, args: []string{"run"}, binary: binary}
	if shift := w.plan.Shifts[number]; shift != 0 && timed() && *flagBinary == "" {
		r.binary, r.shift = shiftedBinary(w.t), shift
		w.count("processes with a wrong clock", 1)
	}
	work := proxy.url
	if w.pooler != nil {
		work = w.pooler.URL
	}
	r.config = w.configure(r.name, work, proxy.url)
	w.replicas = append(w.replicas, r)
	w.timeline.ill(r.name) // until it has started
	w.t.Cleanup(func() {
		for _, p := range r.all {
			p.signal(syscall.SIGKILL)
			<-p.exited
		}
		proxy.close()
	})
}

// configure writes a config; it is in JSON, which is YAML too.
func (w *world) configure(name, url, direct string) (path string) {
	w.t.Helper()
	type options = map[string]any
	var targets []options
	for _, t := range w.plan.Targets {
		guard := options{"max_fraction": 1}
		if t.MaxDeletes >= 0 {
			guard["max_deletes"] = t.MaxDeletes
		}
		target := options{
			"name": t.Name, "guard": guard,
			"concurrency": t.Concurrency, "timeout": t.Timeout.String(), "sync_interval": t.Sync,
			"backoff": options{"min": "50ms", "max": t.BackoffMax.String()},
		}
		if t.Remote {
			target["driver"], target["options"] = "stream", options{"ack": true}
		} else {
			target["driver"], target["options"] = t.Driver, w.driverOptions(t)
		}
		targets = append(targets, target)
	}
	notify := "auto"
	if !w.plan.Notify {
		notify = "off"
	}
	text, err := json.MarshalIndent(options{
		"database_url": url, "direct_url": direct, "listen": "127.0.0.1:0", "streams": options{"listen": "127.0.0.1:0"}, "log": options{"level": "info", "format": "json"}, "notify": notify,
		"shutdown_timeout": "5s", "retention": options{"max_age": "1m", "max_rows": w.plan.MaxRows}, "targets": targets,
	}, "", "  ")
	require.NoError(w.t, err)
	path = filepath.Join(w.dir, name+".yaml")
	require.NoError(w.t, os.WriteFile(path, text, 0o600))
	return path
}

// driverOptions are what the driver of a target needs to know, wherever it runs.
func (w *world) driverOptions(t targetPlan) map[string]any {
	switch t.Driver {
	case "webhook":
		return map[string]any{"url": w.endpoints[w.plan.index(t.Name)].url + "/objects", "headers_env": map[string]any{headerReplica: "WORLD_REPLICA"}}
	case "stream":
		return map[string]any{"ack": w.plan.Ack}
	case "kubernetes":
		return w.endpoints[w.plan.index(t.Name)].cluster.options()
	}
	dir := w.targetDir(t)
	if w.disk != nil {
		dir = filepath.Join(w.disk.Dir, t.Name)
	}
	return map[string]any{"dir": dir, "fsync": false}
}

// diskSize is the room on the disk of a file target: enough for every row of a world.
const diskSize = "64m"

// targetDir is where this process finds the files of a target.
func (w *world) targetDir(t targetPlan) string {
	if w.disk != nil {
		return filepath.Join(w.disk.Seen, t.Name)
	}
	return filepath.Join(w.dir, "target-"+t.Name)
}

// note writes a line into the world's schedule.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := fmt.Sprintf("%s %6.2fs ", time.Now().Format("15:04:05.000"), time.Since(w.began).Seconds()) + fmt.Sprintf(format, args...)
	w.notes = append(w.notes, line)
	if *flagTrace {
		fmt.Fprintln(os.Stderr, line)
	}
}

// violate says that something happened that must not.
func (w *world) violate(what, format string, args ...any) {
	w.note("%s: "+format, append([]any{complaint(what)}, args...)...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, violation{What: what, Text: fmt.Sprintf(format, args...)})
}

// complaint begins what is said of a violation. The word VIOLATION keeps a failed test from being run again. What a busy
// machine may have caused does without it.
func complaint(what string) string {
	if slices.Contains([]string{"tester", "start", "metrics", "recovery", "wake-up", "silent"}, what) {
		return "trouble with " + what
	}
	return "VIOLATION " + what
}

func (w *world) count(what string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what] += n
}

func (w *world) most(what string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.peaks[what] = max(w.peaks[what], n)
}

// run lives the world through, from its start to the last look at it.
func (w *world) run() {
	stop := make(chan struct{})
	quiet := make(chan struct{})
	var writing, watching sync.WaitGroup
	watching.Go(func() { w.stalls.watch(quiet) })
	watching.Go(func() { w.watchOwners(quiet) })
	watching.Go(func() { w.watchWaits(quiet) })
	if timed() {
		watching.Go(func() { w.watchSilence(quiet) })
	}
	for _, r := range w.replicas {
		r.start("")
	}
	for i := range w.plan.Writers {
		x := w.newWriter(i, stop)
		writing.Go(x.run)
	}
	writing.Go(func() { w.probe(stop) })
	if w.plan.Applies > 0 {
		writing.Go(func() { w.operate(stop) })
	}
	for _, c := range w.clusters() {
		writing.Go(func() { c.live(stop) })
	}
	defer watching.Wait()
	defer sync.OnceFunc(func() { close(quiet) })()
	following, leave := context.WithCancel(context.WithoutCancel(w.t.Context()))
	defer leave()
	w.startWatchers(following, watching.Go)
	for _, h := range w.hosts {
		watching.Go(func() { h.live(quiet) })
	}
	func() {
		defer writing.Wait()
		defer close(stop)
		w.inject()
		pass(w.plan.Calm, w.t.Context().Done())
	}()
	w.reload()
	if !w.settle() {
		return // whatever else is wrong comes of it
	}
	w.lookForDelay()
	w.judge()
	w.leave()
}

// probe changes a row of every webhook target all the time, so that there is always something to apply.
func (w *world) probe(done <-chan struct{}) {
	x := w.newWriter(len(w.plan.Targets)+w.plan.Writers, done)
	ctx := context.WithoutCancel(w.t.Context())
	for {
		for i := range w.endpoints {
			err := x.touch(ctx, i)
			x.look(ctx, err)
			if err != nil {
				break
			}
		}
		select {
		case <-done:
			x.finish(ctx)
			return
		default:
			pass(200*time.Millisecond, done)
		}
	}
}

// touch changes the row of the prober in a target.
func (x *writer) touch(ctx context.Context, target int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if x.conn == nil || x.conn.IsClosed() {
		conn, err := x.connect(ctx)
		if err != nil {
			return err
		}
		x.conn = conn
	}
	_, err := x.conn.Exec(ctx, fmt.Sprintf("INSERT INTO nums (id, place) VALUES (%d, '%s') ON CONFLICT (id) DO UPDATE SET version = nextval('test.versions')",
		probeKeys+target, x.world.plan.Targets[target].Name))
	if err == nil {
		x.world.wishes.wish(x.world.plan.Targets[target].Name)
	}
	return err
}

// mayLoseConnections says whether a connection of a writer may just have broken.
func (w *world) mayLoseConnections(err error) bool {
	var broken net.Error
	lost := errors.As(err, &broken) || pgxClosed(err)
	return lost && !w.timeline.healthy(partWriters, time.Now().Add(-5*time.Second), time.Now())
}

func pgxClosed(err error) bool {
	text := err.Error()
	for _, part := range []string{"EOF", "conn closed", "broken pipe", "connection reset", "connection refused", "closed network connection", "failed to connect"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// text runs a query that gives one value, again and again while the server is away.
func (w *world) text(sql string, args ...any) (text string) {
	w.t.Helper()
	w.insist(func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT coalesce(("+sql+")::text, '')", args...).Scan(&text)
	})
	return text
}

// insist calls a function with a connection until it succeeds.
func (w *world) insist(call func(context.Context, *pgx.Conn) error) {
	w.t.Helper()
	var err error
	for range 100 {
		if err = w.once(call); err == nil {
			return
		}
		pass(100*time.Millisecond, w.t.Context().Done())
	}
	require.NoError(w.t, err)
}

func (w *world) once(call func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 30*time.Second)
	defer cancel()
	return w.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return call(ctx, conn.Conn()) })
}

// shownMost is how many violations of a world are shown: the others are hardly news.
const shownMost = 8

// complain fails the test with what was found.
func (w *world) complain() {
	for i, v := range w.violations {
		if i == shownMost {
			w.t.Errorf("seed %d: and %d more", w.plan.Seed, len(w.violations)-i)
			return
		}
		w.t.Errorf("seed %d: %s: %s", w.plan.Seed, complaint(v.What), clip(v.Text))
	}
}

// show prints what is known of a world that failed.
func (w *world) show() {
	w.mu.Lock()
	notes, violations := strings.Join(w.notes, "\n"), w.violations
	w.mu.Unlock()
	if !w.t.Failed() && !*flagTrace {
		return
	}
	var logs strings.Builder
	for _, r := range w.replicas {
		logs.WriteString(r.logs())
	}
	for _, h := range w.hosts {
		logs.WriteString(h.logs())
	}
	if w.agent != nil {
		logs.WriteString(w.agent.logged())
	}
	w.t.Logf("%s\nwhat happened:\n%s\n\n%s", w.plan, notes, logs.String())
	calls := w.journal.all()
	for i, v := range violations {
		if i == shownMost {
			break
		}
		var lines strings.Builder
		if v.Object != (object{}) {
			for _, c := range of(calls, v.Object, v.At) {
				fmt.Fprintf(&lines, "\n    %s", c)
			}
			for _, c := range w.changes {
				if c.concerns(v.Object) {
					fmt.Fprintf(&lines, "\n    %s", c)
				}
			}
		}
		w.t.Logf("%s: %s%s", v.What, clip(v.Text), lines.String())
	}
}
