package faults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// watchAcknowledged looks at the ledger again and again until done, or until something is wrong.
func (w *world) watchAcknowledged(done <-chan struct{}) {
	for {
		pass(250*time.Millisecond, done)
		select {
		case <-done:
			return
		default:
		}
		found, err := w.acknowledged()
		if err != nil || len(found) == 0 { // without the server there is nothing to look at
			continue
		}
		w.mu.Lock()
		w.violations = append(w.violations, found...)
		w.mu.Unlock()
		return
	}
}

// acknowledgedSQL reads the ledger with the hashes of what is applied. An object that is published for the first time comes there later.
const acknowledgedSQL = `
SELECT r.name, l.key, CASE l.state WHEN 'applied' THEN encode(l.applied_hash, 'hex') ELSE '' END
FROM reconciler.targets t JOIN reconciler.ledger l ON l.target_id = t.id JOIN reconciler.resources r ON r.id = l.resource_id
WHERE t.name = $1
UNION ALL SELECT p.resource, p.key, ''
FROM reconciler.targets t JOIN reconciler.published p ON p.target_id = t.id
WHERE t.name = $1 AND p.spec IS NOT NULL AND NOT EXISTS (SELECT FROM reconciler.ledger l
    JOIN reconciler.resources r ON r.id = l.resource_id WHERE l.target_id = t.id AND r.name = p.resource AND l.key = p.key)`

// acknowledged reads the ledger, and returns what it has without an acknowledgement.
func (w *world) acknowledged() (found []violation, err error) {
	a := w.agent
	before := a.has()
	ledger := map[object]string{}
	err = w.once(func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, acknowledgedSQL, a.target)
		if err != nil {
			return err
		}
		o, hash := object{Target: a.target}, ""
		_, err = pgx.ForEachRow(rows, []any{&o.Resource, &o.Key, &hash}, func() error {
			ledger[o] = hash
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	if a.forgotten {
		before = nil
	}
	w.count("looks at acknowledged objects", len(ledger))
	return unacknowledged(a, ledger, before), nil
}

// unacknowledged finds objects that the ledger has as applied with a spec that the agent has never had, and objects that the agent has and
// the ledger has no more. The ledger has the hash of what is applied, and "" for what is not. before is what the agent had when the ledger
// was read.
func unacknowledged(a *agent, ledger map[object]string, before map[object]int) (found []violation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for o, hash := range ledger {
		if hash != "" && !a.had[o][hash] {
			found = append(found, violation{"ack applied", fmt.Sprintf("%s is applied with hash %s, which the agent never had", o, hash), o, time.Now()})
		}
	}
	for o, changes := range before {
		if _, known := ledger[o]; !known && a.changes[o] == changes {
			found = append(found, violation{"ack deleted", fmt.Sprintf("%s is not in the ledger, and the agent has it", o), o, time.Now()})
		}
	}
	return found
}

// has returns what the far side has, with how often each object has changed.
func (a *agent) has() map[object]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	have := map[object]int{}
	for o := range a.objects {
		have[o] = a.changes[o]
	}
	return have
}

func TestUnacknowledgedObjectsAreFound(t *testing.T) {
	t.Parallel()
	here, gone := object{"t2", "num", "1"}, object{"t2", "num", "2"}
	first, second := driver.HashSpec([]byte("1")).String(), driver.HashSpec([]byte("2")).String()
	a := &agent{changes: map[object]int{}, had: map[object]map[string]bool{}}
	a.changed(here, []byte("1"))
	a.changed(gone, []byte("1"))
	before := map[object]int{here: 1, gone: 1}
	require.Empty(t, unacknowledged(a, map[object]string{here: first, gone: ""}, before))
	require.Equal(t, "ack applied", unacknowledged(a, map[object]string{here: second, gone: first}, before)[0].What)
	require.Equal(t, "ack deleted", unacknowledged(a, map[object]string{here: first}, before)[0].What)
	a.changes[gone]++ // it was deleted in between
	require.Empty(t, unacknowledged(a, map[object]string{here: first}, before))
	a.changed(here, []byte("2"))
	require.Empty(t, unacknowledged(a, map[object]string{here: first}, nil), "the ledger may be behind")
}
