package faults_test

import (
	"context"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const glance = 50 * time.Millisecond // between two looks at who owns what

// owners remembers which process owned which lease when.
type owners struct {
	mu      sync.Mutex // guards what follows
	changes map[string][]owning
	seen    time.Time // when the database was asked last
}

// owning is a lease's owner from a time on: a process number, 0 for none.
type owning struct {
	At  time.Time
	PID int
}

// now returns the owner of a lease.
func (o *owners) now(lease string) (known bool, pid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	changes := o.changes[lease]
	if len(changes) == 0 || time.Since(o.seen) > time.Second {
		return false, 0
	}
	return true, changes[len(changes)-1].PID
}

func (o *owners) history() map[string][]owning {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[string][]owning{}
	for lease, changes := range o.changes {
		all[lease] = append([]owning(nil), changes...)
	}
	return all
}

func (o *owners) saw(lease string, pid int, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changes == nil {
		o.changes = map[string][]owning{}
	}
	o.seen = at
	changes := o.changes[lease]
	if len(changes) == 0 || changes[len(changes)-1].PID != pid {
		o.changes[lease] = append(changes, owning{at, pid})
	}
}

// watchOwners reads who owns what until done.
func (w *world) watchOwners(done <-chan struct{}) {
	for {
		// The connection ends with the server; then comes another one.
		_ = w.once(func(ctx context.Context, conn *pgx.Conn) error {
			for {
				select {
				case <-done:
					return nil
				default:
				}
				if err := w.readOwners(context.WithoutCancel(ctx), conn); err != nil {
					return err
				}
				pass(glance, done)
			}
		})
		select {
		case <-done:
			return
		default:
			pass(glance, done)
		}
	}
}

var pidInName = regexp.MustCompile(`[0-9]+$`)

func (w *world) readOwners(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `
		SELECT l.name, coalesce(i.name, '0'), l.owner IS NOT NULL AND i.id IS NULL
		FROM (SELECT name, owner FROM reconciler.targets UNION ALL SELECT name, owner FROM reconciler.leases) AS l
		LEFT JOIN reconciler.instances AS i ON i.id = l.owner`)
	if err != nil {
		return err
	}
	defer rows.Close()
	at := time.Now()
	for rows.Next() {
		var lease, instance string
		var unknown bool
		if err := rows.Scan(&lease, &instance, &unknown); err != nil {
			return err
		}
		pid, _ := strconv.Atoi(pidInName.FindString(instance))
		if !unknown {
			w.owners.saw(lease, pid, at)
		}
	}
	return rows.Err()
}

// watchWaits looks for writers that wait for the product: 2 s for one statement is more than a moment. On a busy machine
// 30 s are. I8.
func (w *world) watchWaits(done <-chan struct{}) {
	const often = 500 * time.Millisecond
	most := 4
	if !timed() {
		most = 60
	}
	before := map[string]int{}
	for {
		_ = w.once(func(ctx context.Context, conn *pgx.Conn) error {
			ctx = context.WithoutCancel(ctx)
			for {
				select {
				case <-done:
					return nil
				default:
				}
				now, err := waits(ctx, conn)
				if err != nil {
					return err
				}
				for wait := range now {
					now[wait] += before[wait]
					if now[wait] == most {
						w.violate("I8 wait", "a writer waits for the product: %s", wait)
					}
				}
				before = now
				pass(often, done)
			}
		})
		select {
		case <-done:
			return
		default:
			pass(often, done)
		}
	}
}

// waits returns which statements of writers wait for which sessions of the product. TRUNCATE gives way to everybody.
func waits(ctx context.Context, conn *pgx.Conn) (map[string]int, error) {
	rows, err := conn.Query(ctx, `
		SELECT DISTINCT format('%s (since %s) for %s: %s', left(a.query, 200), a.query_start, b.application_name, left(b.query, 200))
		FROM pg_stat_activity AS a, unnest(pg_blocking_pids(a.pid)) AS by (pid) JOIN pg_stat_activity AS b ON b.pid = by.pid
		WHERE a.datname = current_database() AND a.application_name = $1 AND a.wait_event_type = 'Lock'
		  AND b.application_name LIKE 'reconciler%' AND a.query NOT LIKE '%TRUNCATE%'`, writerName)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	now := map[string]int{}
	for _, wait := range all {
		now[wait] = 1
	}
	return now, err
}
