package faults_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// judge asks every oracle.
func (w *world) judge() {
	found := w.compare()
	calls := w.calls()
	w.lateOnes(found)
	if len(found) > 0 && w.mayBeOverwritten(found, calls) {
		w.count("repaired by a sync", len(found))
		w.note("the last call of a frozen owner came late: %s", found[0].Text)
		for _, t := range w.plan.Targets {
			w.order(`SELECT reconciler.resync($1)`, t.Name)
		}
		if code, said := w.waitAtRest(); code != 0 {
			w.violate("I1 rest", "it does not come to rest: %s", clip(said))
		}
		found = w.compare()
		calls = w.calls()
	}
	found = append(found, w.judgeClusters()...)
	for i := range found {
		found[i].Text += ", though wait() says that all is applied"
	}
	history := w.history()
	w.mu.Lock()
	w.changes = history
	w.mu.Unlock()
	m := newModel(w.targetNames(), history)
	owned, more := w.judgeCalls(m, calls)
	found = append(found, more...)
	found = append(found, w.judgeStream(m)...)
	found = append(found, w.judgeRollouts(m, history, owned)...)
	w.mu.Lock()
	approved := w.approved
	w.mu.Unlock()
	if approved.IsZero() {
		approved = time.Now()
	}
	for _, t := range w.plan.Targets {
		if t.MaxDeletes >= 0 { // files that the daemon writes itself have no journal
			found = append(found, guardBreaks(m, owned, t.Name, t.MaxDeletes, approved)...)
		}
	}
	for _, v := range found {
		w.mu.Lock()
		w.violations = append(w.violations, v)
		w.mu.Unlock()
	}
	for _, text := range w.column(`SELECT format('at %s: %s wrote (%s) for %s, which %s owned in term %s', at, writer, what, target, owner, term) FROM test.deposed ORDER BY at`) {
		w.violate("I10 ledger", "%s", text)
	}
	w.measure(calls)
	w.tally(calls)
	w.firstCallsEnd()
	w.outboxIsBounded()
	w.nothingLeaks()
}

// judgeCalls asks the oracles about calls and publications. It returns what owners did: their calls, and what they published, which are
// their calls for streams. What an agent does later is compared with that: a bound in time for it would let pass what it deletes by mistake.
func (w *world) judgeCalls(m *model, calls []call) (owned []call, found []violation) {
	frozen := func(replica string, from, to time.Time) bool { return !w.timeline.healthy("awake "+replica, from, to) }
	found = overlaps(calls, frozen)
	published := w.judged(w.publications())
	var remote []call
	for _, c := range w.judged(calls) {
		if c.Remote {
			remote = append(remote, c)
		} else {
			owned = append(owned, c)
		}
	}
	owned = append(owned, published...)
	for _, by := range [][]call{owned, remote} {
		found = append(found, staleCalls(m, by)...)
		found = append(found, unknownSpecs(m, by)...)
		found = append(found, deposed(by, frozen)...)
	}
	rewound := func(target string, from, to time.Time) bool { return !w.timeline.healthy(stateOf(target), from, to) }
	found = append(found, unpublished(published, remote, rewound)...)
	found = append(found, steppedBack(m, remote, rewound)...)
	found = append(found, steppedBack(m, published, func(string, time.Time, time.Time) bool { return false })...)
	return owned, append(found, baselessDeletes(m, owned, fuzz)...)
}

// lateOnes says which differences end by themselves: then the product said too early that it is at rest.
func (w *world) lateOnes(found []violation) {
	if len(found) == 0 {
		return
	}
	pass(5*time.Second, w.t.Context().Done())
	left := w.compare()
	w.note("%d differences, %d of them are left after 5 s", len(found), len(left))
}

// mayBeOverwritten says whether all that is wrong is at targets that cannot fence, and the last call for it was of an
// owner that had been deposed: what docs/guarantees.md does not promise before the next sync.
func (w *world) mayBeOverwritten(found []violation, calls []call) bool {
	last := map[object]call{}
	terms := map[object]int64{}
	for _, c := range calls {
		if c.Effect {
			last[c.Object] = c
			terms[c.Object] = max(terms[c.Object], c.Term)
		}
	}
	for _, v := range found {
		if c, ok := last[v.Object]; !ok || c.Term >= terms[v.Object] {
			return false
		}
	}
	return true
}

func (w *world) targetNames() (names []string) {
	for _, t := range w.plan.Targets {
		names = append(names, t.Name)
	}
	return names
}

// history reads what was committed, and when.
func (w *world) history() (all []change) {
	w.insist(func(ctx context.Context, conn *pgx.Conn) error {
		all = nil
		rows, err := conn.Query(ctx, `SELECT pg_xact_commit_timestamp(xid::xid), seq, xid::text, tab, old, new, silent FROM test.history ORDER BY seq`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var c change
			var before, after []byte
			if err := rows.Scan(&c.At, &c.Seq, &c.Xid, &c.Tab, &before, &after, &c.Silent); err != nil {
				return err
			}
			c.Old, err = parseRow(c.Tab, before)
			if err != nil {
				return err
			}
			c.New, err = parseRow(c.Tab, after)
			if err != nil {
				return err
			}
			c.At = w.actual(c.At)
			all = append(all, c)
		}
		return rows.Err()
	})
	w.count("rows changed", len(all))
	return all
}

// tally counts what was done in the world.
func (w *world) tally(calls []call) {
	w.count("calls", len(calls))
	for _, c := range calls {
		switch {
		case c.Outcome != callOK:
			w.count("calls: "+strings.TrimSuffix(c.Outcome, ", client gone"), 1)
		case c.Delete:
			w.count("calls: deletes", 1)
		}
	}
	terms := map[string]bool{}
	for _, c := range calls {
		terms[fmt.Sprint(c.Object.Target, c.Term)] = true
	}
	w.count("terms of owners", len(terms))
}

// firstCallsEnd checks that no owner has a first call on record that has its result. I7.
func (w *world) firstCallsEnd() {
	const open = `SELECT string_agg(format('%s of %s', c.keys, t.name), '; ') FROM reconciler.first_calls c JOIN reconciler.targets t ON t.id = c.target_id AND t.term = c.term`
	if left := w.text(open); left != "" {
		w.violate("I7 first calls", "at rest, and on record: %s", left)
	}
}

// outboxIsBounded checks that nobody is behind, so that retention may empty the outbox. I9.
func (w *world) outboxIsBounded() {
	left := ""
	for range 900 {
		for w.text(`SELECT reconciler.retain('1 minute', $1::bigint, '0')`, w.plan.MaxRows) != "" {
			continue // it does one thing at a time
		}
		if left = w.text(`SELECT count(*) FROM reconciler.outbox`); left == "0" {
			return
		}
		pass(100*time.Millisecond, w.t.Context().Done())
	}
	w.violate("I9 outbox", "at rest, and retention does not empty the outbox: %s rows", left)
}

const (
	goroutinesMost = 300 // of a process at rest; most of them wait in pools of HTTP and PostgreSQL
	filesMost      = 200 // open ones, connections included
)

// nothingLeaks looks at what a process has open when it has nothing to do. I9.
func (w *world) nothingLeaks() {
	for _, r := range w.replicas {
		have, err := r.process().metrics(w.t.Context())
		if err != nil {
			w.violate("metrics", "%s: %v", r.name, err)
			continue
		}
		w.most("goroutines at rest", have["go_goroutines"])
		w.most("open files at rest", have["process_open_fds"])
		if have["go_goroutines"] > goroutinesMost || have["process_open_fds"] > filesMost {
			w.violate("leak", "%s at rest has %d goroutines and %d open files", r.name, have["go_goroutines"], have["process_open_fds"])
		}
	}
}
