package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgreconciler/reconciler/internal/crash"
)

// Sources of chance of what has to do with applies; what was there before them keeps its own.
const (
	streamApplies   = 4
	streamOperator  = 5
	streamNovelties = 6
	streamPoints    = 301
	streamRollouts  = 400 // and the writer's number
	streamStreams   = 316 // whether the last target is a stream
	streamAgent     = 317 // whether it waits for acknowledgement, and the lives of the agent
	streamHosts     = 318 // which targets agents call, and (in the numbers that follow) what strikes each agent
	streamHostile   = 302 // rows and settings
	// which target is a Kubernetes cluster, and what people do to it
	streamKubernetes = 330
)

// rolloutPoints are the crash points that only applies come to.
var rolloutPoints = []crash.Name{crash.BeforeOpen, crash.OpenPiece, crash.AfterOpen, crash.OperationClaimed, crash.TasksRecorded, crash.BeforeConfirm}

// addApplies makes some of the transactions of most worlds applies. In half of these people give commands on them.
func (p *plan) addApplies(r *rand.Rand) {
	p.Applies = []int{0, 5, 15, 40}[r.IntN(4)]
	p.Operator = p.Applies > 0 && r.IntN(2) == 0
}

// rollout makes the transaction with these statements an apply, now and then.
func (x *writer) rollout(statements string) string {
	if x.rollouts.IntN(100) >= x.world.plan.Applies {
		return statements
	}
	if x.rollouts.IntN(3) == 0 { // what came before belongs to it, too
		return statements + "; " + x.beginApply()
	}
	return x.beginApply() + "; " + statements
}

func (x *writer) beginApply() string {
	r := x.rollouts
	strategy := []string{"rolling", "rolling", "waves", "parallel"}[r.IntN(4)]
	waves := "NULL"
	if strategy == "waves" {
		waves = "'" + x.waves() + "'"
	}
	soak := time.Duration(0)
	if r.IntN(3) == 0 {
		soak = between(r, 10*time.Millisecond, 800*time.Millisecond)
	}
	return fmt.Sprintf("SELECT reconciler.begin_apply('by writer %d', on_failure => '%s', strategy => '%s', waves => %s, soak => '%d ms', attempts => %d)",
		x.number, []string{"halt", "continue", "pause"}[r.IntN(3)], strategy, waves, soak.Milliseconds(), []int{1, 2, 5, 20}[r.IntN(4)])
}

// waves names some of the targets, in one wave or two.
func (x *writer) waves() string {
	names := x.world.targetNames()
	x.rollouts.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:1+x.rollouts.IntN(len(names))]
	second := 1 + x.rollouts.IntN(len(names)) // where the second wave begins
	text := `[["` + strings.Join(names[:second], `", "`) + `"]`
	if second < len(names) {
		text += `, ["` + strings.Join(names[second:], `", "`) + `"]`
	}
	return text + "]"
}

// commands are what people say to applies; those that make them go on come more often.
var commands = []string{"stop", "stop", "start", "start", "start", "pause", "release", "release", "release", "retry", "retry", "cancel"}

// operate looks at applies until done, and gives commands on them at random.
func (w *world) operate(done <-chan struct{}) {
	r := w.plan.stream(streamOperator)
	for {
		pass(between(r, 100*time.Millisecond, 1200*time.Millisecond), done)
		select {
		case <-done:
			return
		default:
		}
		w.look(false)
		if !w.plan.Operator {
			continue
		}
		command, choice := commands[r.IntN(len(commands))], r.IntN(6)
		_ = w.once(func(ctx context.Context, conn *pgx.Conn) error { // the server may be away
			var id int64
			err := conn.QueryRow(ctx, `SELECT id FROM (SELECT id FROM reconciler.applies ORDER BY completed_at IS NOT NULL, id DESC LIMIT $1) AS a ORDER BY id LIMIT 1`, 1+choice).Scan(&id)
			if err == nil {
				w.command1(ctx, conn, command, id)
			}
			return err
		})
	}
}

// command1 gives one command. It may not fit; it must not fail in another way.
func (w *world) command1(ctx context.Context, conn *pgx.Conn, command string, id int64) {
	var said string
	err := conn.QueryRow(ctx, fmt.Sprintf(`SELECT reconciler.apply_%s($1)`, command), id).Scan(&said)
	w.note("%s apply %d: %s %v", command, id, said, err)
	failure, failed := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		w.count("apply commands: "+command, 1)
	case failed && failure.Code == "55000":
		w.count("apply commands that did not fit", 1)
	case failed && !slices.Contains([]string{"57P01", "57P02", "57P03", "53300"}, failure.Code):
		w.violate("apply command", "%s of apply %d failed: %v", command, id, err)
	}
}

// retriedMost is how often the tester tries a failed apply again when the faults have ended, before it lets it go.
const retriedMost = 2

// letGo gives the commands after which applies hold nothing any more, and says whether each has ended.
func (w *world) letGo() (ended bool) {
	// Rows have named a target that nobody has. Applies wait for it until it is forgotten.
	w.order(`SELECT reconciler.release(name) FROM reconciler.targets WHERE name = $1 AND NOT configured`, nowhere)
	ended = true
	for _, a := range w.unfinished() {
		command := ""
		switch {
		case a.terminal() && !a.holds():
			continue
		case a.terminal() && !a.closed(): // it has been let go
		case a.State == "failed" && w.retried[a.ID] < retriedMost && a.ID%2 == 0:
			w.retried[a.ID]++
			command = "retry"
		case a.terminal():
			command = "release"
		case a.Wish == "stop":
			command = "start"
		case a.Wish == "pause" || a.State == "paused":
			command = "release"
		}
		ended = false
		if command != "" {
			w.insist(func(ctx context.Context, conn *pgx.Conn) error {
				w.command1(ctx, conn, command, a.ID)
				return nil
			})
		}
	}
	return ended
}

// rolloutsEnd waits a moment for every apply to have ended and to hold nothing.
func (w *world) rolloutsEnd() bool {
	for range 50 {
		if w.letGo() {
			return true
		}
		pass(100*time.Millisecond, w.t.Context().Done())
	}
	for _, a := range w.unfinished() {
		if !a.terminal() || a.holds() {
			w.note("not ended: %s", a)
		}
	}
	return false
}

// look asks the oracles that hold at any time; at rest those too that hold then.
func (w *world) look(rest bool) {
	read := w.once // the server may be away
	if rest {
		read = func(call func(context.Context, *pgx.Conn) error) error {
			w.insist(call)
			return nil
		}
	}
	var found []violation
	_ = read(func(ctx context.Context, conn *pgx.Conn) error {
		all, err := rollouts(ctx, conn, rest, rest)
		found = slices.Concat(wrongStates(all), wrongLogs(all))
		if rest {
			found = slices.Concat(found, unrest(all), wrongCounts(all), wrongEvents(all))
		}
		return err
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range found {
		if !slices.ContainsFunc(w.violations, func(before violation) bool { return before.What == v.What && before.Text == v.Text }) {
			w.violations = append(w.violations, v)
		}
	}
}

// readRollouts reads all applies, with their tasks.
func (w *world) readRollouts() (all []rollout) {
	w.insist(func(ctx context.Context, conn *pgx.Conn) (err error) {
		all, err = rollouts(ctx, conn, true, true)
		return err
	})
	return all
}

// unfinished reads those that have not ended, or hold something.
func (w *world) unfinished() (some []rollout) {
	w.insist(func(ctx context.Context, conn *pgx.Conn) (err error) {
		some, err = rollouts(ctx, conn, false, false)
		return err
	})
	return some
}

// rollouts reads applies in one statement, and so as they were at one moment: with their tasks, and with all that are
// finished, if these are asked for; else with those that have ended a moment ago.
func rollouts(ctx context.Context, conn *pgx.Conn, tasks, finished bool) (all []rollout, err error) {
	var text []byte
	err = conn.QueryRow(ctx, `
		SELECT coalesce(jsonb_agg(to_jsonb(a) || jsonb_build_object(
			'committed', pg_xact_commit_timestamp(a.xid::xid),
			'parts', (SELECT coalesce(jsonb_agg(to_jsonb(o) || jsonb_build_object('objects', CASE WHEN $1 THEN
					(SELECT coalesce(jsonb_agg(jsonb_build_object('target', o.target, 'resource', r.name, 'key', k.key, 'state', k.state, 'seq', k.seq, 'attempts', k.attempts)), '[]')
					 FROM reconciler.tasks AS k JOIN reconciler.resources AS r ON r.id = k.resource_id WHERE k.operation_id = o.id) END) ORDER BY o.ordinal, o.target), '[]')
				FROM reconciler.operations AS o WHERE o.apply_id = a.id),
			'log', (SELECT coalesce(jsonb_agg(to_jsonb(l) ORDER BY l.version), '[]') FROM reconciler.apply_log AS l WHERE l.apply_id = a.id),
			'events', (SELECT coalesce(jsonb_agg(e.event ORDER BY e.event), '[]') FROM test.ends AS e WHERE e.apply = a.id)) ORDER BY a.id), '[]')
		FROM reconciler.applies AS a
		WHERE $2 OR a.completed_at IS NULL OR a.completed_at > clock_timestamp() - interval '5 seconds' OR EXISTS (SELECT FROM reconciler.operations AS o WHERE o.apply_id = a.id AND NOT o.done)`, tasks, finished).Scan(&text)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	return all, err
}

// slowToOpen is what the world's schedule tells of.
const slowToOpen = 2 * time.Second

// judgeRollouts asks every oracle about applies, and counts what there was.
func (w *world) judgeRollouts(m *model, history []change, calls []call) (found []violation) {
	w.look(true)
	all := w.readRollouts()
	// A claim that the server had not written to its disk when it crashed was made once more.
	forgotten := func(at time.Time) bool { return !w.timeline.healthy(partServer, at, at.Add(2*time.Second)) }
	found = earlyCalls(m, all, history, calls, forgotten)
	tally := map[string]int{}
	transactions := writtenBy(m, history)
	for _, a := range all {
		if a.Opened != nil { // until then no owner calls for anything
			at := a.wrote(transactions).at
			took := a.Opened.Sub(at)
			w.most("milliseconds until an apply is open", int(took.Milliseconds()))
			if took > slowToOpen {
				w.note("apply %d was open %s after its commit at %s", a.ID, took.Round(time.Millisecond), at.UTC().Format("15:04:05.000"))
			}
		}
		tally["applies begun"]++
		tally["applies "+a.State]++
		tally["applies: "+a.Strategy]++
		for _, p := range a.Parts {
			tally["operations "+p.State]++
			for _, o := range p.Objects {
				tally["tasks "+o.State]++
			}
		}
	}
	var lines []string
	for what, n := range tally {
		w.count(what, n)
		lines = append(lines, fmt.Sprintf("%s: %d", what, n))
	}
	slices.Sort(lines)
	w.note("%s", strings.Join(lines, ", "))
	return found
}
