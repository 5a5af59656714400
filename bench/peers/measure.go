package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/measure"
)

const (
	latencyChanges = 1000
	giantRows      = 100_000
	snapshotRows   = 500_000
)

// crowds are the numbers of writers that commit as fast as they can.
var crowds = []int{16, mostWriters}

// record is all that was measured of one peer.
type record struct {
	Peer      string               `json:"peer"`
	Values    map[string][]float64 `json:"values"` // by the key of a column, one for each round
	Committed int                  `json:"committed"`
	// Missing is how much was never delivered: changes, or objects whose last version was not, where they coalesce.
	Missing int `json:"missing"`

	about about
}

func newRecord(a about) *record {
	return &record{Peer: a.name, Values: map[string][]float64{}, about: a}
}

func (r *record) note(key string, value float64) { r.Values[key] = append(r.Values[key], value) }

// visit measures one peer once, and adds to its record.
func (l *lab) visit(ctx context.Context, mk func() peer, r *record) error {
	if err := l.live(ctx, mk(), r); err != nil {
		return err
	}
	return l.snapshot(ctx, mk(), r)
}

// live measures what happens while changes are made.
func (l *lab) live(ctx context.Context, p peer, r *record) (err error) {
	s, err := l.open(ctx, p, l.rows(giantRows))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	for _, writers := range crowds {
		if err := l.untracked(ctx, s, r, writers); err != nil {
			return fmt.Errorf("commits on an untracked table: %w", err)
		}
	}
	if err := p.start(ctx, s.stage); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := l.latency(ctx, s, r); err != nil {
		return fmt.Errorf("latency: %w", err)
	}
	if err := l.besideOpen(ctx, s, r); err != nil {
		return fmt.Errorf("beside an open transaction: %w", err)
	}
	for _, writers := range crowds {
		if err := l.sustained(ctx, s, r, writers); err != nil {
			return fmt.Errorf("%d writers: %w", writers, err)
		}
	}
	if bulk, ok := p.(bulkPeer); ok {
		if err := l.giant(ctx, s, r, bulk); err != nil {
			return fmt.Errorf("one large transaction: %w", err)
		}
	}
	return nil
}

// settle waits for what was committed, and takes down what never came.
func (l *lab) settle(ctx context.Context, s *site, r *record, commits []change) (missing int, err error) {
	s.inbox.expect(s.about.coalesces, commits)
	missing, err = s.inbox.wait(ctx, l.patience)
	r.Committed += len(commits)
	r.Missing += missing
	return missing, err
}

func changesOf(commits []sent) []change {
	changes := make([]change, len(commits))
	for i, c := range commits {
		changes[i] = c.change
	}
	return changes
}

// latency measures from commit to consumer, one change at a time.
func (l *lab) latency(ctx context.Context, s *site, r *record) error {
	s.inbox.forget()
	commits, err := s.trickle(ctx, l.rows(writtenRows), func(made int) bool { return made < l.rows(latencyChanges) })
	if err != nil {
		return err
	}
	if _, err := l.settle(ctx, s, r, changesOf(commits)); err != nil {
		return err
	}
	if times := delays(s.about.coalesces, commits, s.inbox.deliveries()); len(times) > 0 {
		r.note("p50", measure.Percentile(times, .5))
		r.note("p99", measure.Percentile(times, .99))
	}
	return nil
}

// besideOpen measures the longest of these times while somebody else's transaction, which has written, stays open.
func (l *lab) besideOpen(ctx context.Context, s *site, r *record) error {
	s.inbox.forget()
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if _, err := tx.Exec(ctx, "INSERT INTO others VALUES (1)"); err != nil {
		return errors.Join(fmt.Errorf("write what nobody looks at: %w", err), tx.Rollback(ctx))
	}
	began := time.Now()
	commits, err := s.trickle(ctx, l.rows(writtenRows), func(int) bool { return time.Since(began) < l.hold })
	if err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if _, err := l.settle(ctx, s, r, changesOf(commits)); err != nil {
		return err
	}
	if times := delays(s.about.coalesces, commits, s.inbox.deliveries()); len(times) > 0 {
		r.note("open", measure.Percentile(times, 1))
	}
	return nil
}

// untracked measures what the server commits when nobody looks: the same transactions, on a table that is alike.
func (l *lab) untracked(ctx context.Context, s *site, r *record, writers int) error {
	commits, took, err := s.flood(ctx, writers, l.rows(writtenRows), l.length, func(ctx context.Context, conn *pgx.Conn, id int) (change, error) {
		c := change{id, time.Now().UnixNano()}
		_, err := transact(ctx, conn, update(ctx, "untracked", c))
		return c, err
	})
	if err != nil {
		return err
	}
	r.note(fmt.Sprint("untracked", writers), float64(len(commits))/took.Seconds())
	return nil
}

// sustained measures what many writers commit, and what the consumer has of it in the time until it has the last.
func (l *lab) sustained(ctx context.Context, s *site, r *record, writers int) error {
	s.inbox.forget()
	if err := s.exec(ctx, "CHECKPOINT"); err != nil {
		return err
	}
	began := time.Now()
	commits, took, err := s.flood(ctx, writers, l.rows(writtenRows), l.length, func(ctx context.Context, conn *pgx.Conn, id int) (change, error) {
		c := s.next(id)
		_, err := s.peer.commit(ctx, conn, c)
		return c, err
	})
	if err != nil {
		return err
	}
	committed := float64(len(commits)) / took.Seconds()
	r.note(fmt.Sprint("committed", writers), committed)
	if s.about.noTable == "" {
		untracked := r.Values[fmt.Sprint("untracked", writers)]
		r.note(fmt.Sprint("share", writers), 100*committed/untracked[len(untracked)-1])
	}
	missing, err := l.settle(ctx, s, r, commits)
	if err != nil {
		return err
	}
	if came := len(commits) - missing; came > 0 {
		// The last commit can reach its consumer before it has reached its writer.
		whole := max(took, s.inbox.finished().Sub(began))
		r.note(fmt.Sprint("delivered", writers), float64(came)/whole.Seconds())
	}
	return nil
}

// giant measures one transaction of many rows, from its commit until the consumer has them all.
func (l *lab) giant(ctx context.Context, s *site, r *record, p bulkPeer) error {
	s.inbox.forget()
	if err := s.exec(ctx, "VACUUM things", "CHECKPOINT"); err != nil {
		return err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	rows := l.rows(giantRows)
	const version = 1 << 40 // newer than any
	at, err := p.commitAll(ctx, conn.Conn(), rows, version)
	if err != nil {
		return err
	}
	changes := make([]change, rows)
	for i := range changes {
		changes[i] = change{i + 1, version}
	}
	missing, err := l.settle(ctx, s, r, changes)
	if err != nil {
		return err
	}
	if missing == 0 {
		r.note("giant", s.inbox.finished().Sub(at).Seconds())
	}
	return nil
}

// snapshot measures how long it takes from the start until the consumer has every row that was there.
func (l *lab) snapshot(ctx context.Context, p peer, r *record) (err error) {
	if p.about().noSnapshot != "" {
		return nil
	}
	rows := l.rows(snapshotRows)
	s, err := l.open(ctx, p, rows)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	there := make([]change, rows)
	for i := range there {
		there[i] = change{id: i + 1}
	}
	s.inbox.expect(true, there) // each row once, in whatever version
	began := time.Now()
	if err := p.start(ctx, s.stage); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	missing, err := s.inbox.wait(ctx, l.patience)
	if err != nil {
		return err
	}
	r.Committed += rows
	r.Missing += missing
	if missing == 0 {
		r.note("snapshot", s.inbox.finished().Sub(began).Seconds())
	}
	return nil
}
