package leader

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// pieceLong is when a piece of changes took too long to expand: heartbeats come every few seconds and wait for it.
	pieceLong  = time.Second
	pieceFirst = 64
	pieceMax   = 2048
)

// change is a row of a base table that changed: which objects of which resource it concerns.
type change struct {
	apply      int64 // that it belongs to; 0: to none
	resourceID int32
	image      string
}

// rows is what users' rows are read through, in transactions that mark their objects.
func (s *Steward) rows() *pgxpool.Pool { return cmp.Or(s.Rows, s.Pool) }

func (s *Steward) unknownResource(changes map[change]bool) bool {
	for c := range changes {
		if _, ok := s.Catalog.ByID(c.resourceID); !ok {
			return true
		}
	}
	return false
}

// expand marks the objects that changes concern, and moves the cursor with the last of them. It goes in pieces: each is
// a transaction that holds the leadership's row, which the heartbeat needs. (With one for a whole page the lease ran
// out meanwhile, and the next leader began again.) What a transaction writes belongs to one apply, or to none; so that many
// small applies do not cost as many round trips, pieces are sent together.
func (s *Steward) expand(ctx context.Context, term int64, changes map[change]bool, to outbox.Tick, last bool) error {
	left := slices.SortedFunc(maps.Keys(changes), func(a, b change) int {
		return cmp.Or(cmp.Compare(a.apply, b.apply), cmp.Compare(a.resourceID, b.resourceID), cmp.Compare(a.image, b.image))
	})
	for {
		changes := left[:min(len(left), s.piece)]
		left = left[len(changes):]
		began := time.Now()
		if err := s.expandPieces(ctx, term, cutPieces(changes), to, last && len(left) == 0); err != nil {
			return err
		}
		s.piece = nextPiece(s.piece, len(changes), time.Since(began))
		if len(left) == 0 {
			return nil
		}
	}
}

// cutPieces cuts changes that are sorted by apply into those of each; no changes are one piece.
func cutPieces(changes []change) (pieces [][]change) {
	begin := 0
	for i, c := range changes {
		if c.apply != changes[begin].apply {
			pieces, begin = append(pieces, changes[begin:i]), i
		}
	}
	return append(pieces, changes[begin:])
}

// expandPieces expands pieces by a pipeline, and those that it did not get to, because a row cannot be evaluated, one by one.
func (s *Steward) expandPieces(ctx context.Context, term int64, pieces [][]change, to outbox.Tick, last bool) error {
	done, err := s.sendPieces(ctx, term, pieces, to, last)
	if err == nil || ctx.Err() != nil || database.IsUnavailable(err) || database.IsFenced(err) {
		return err
	}
	for i, piece := range pieces[done:] {
		if err := s.expandPiece(ctx, term, piece, to, last && done+i == len(pieces)-1); err != nil {
			return err
		}
	}
	return nil
}

// sendPieces sends each piece as a transaction, all at once but for the last commit, and returns how many were committed.
func (s *Steward) sendPieces(ctx context.Context, term int64, pieces [][]change, to outbox.Tick, last bool) (done int, err error) {
	batch, rows := &pgx.Batch{}, int64(0)
	for i, piece := range pieces {
		if i > 0 {
			batch.Queue("COMMIT").Exec(func(pgconn.CommandTag) error {
				done++
				return nil
			})
		}
		batch.Queue("BEGIN")
		if err := s.queuePiece(ctx, batch, term, piece, &rows); err != nil {
			return 0, err
		}
	}
	if last {
		if err := s.moveCursor(ctx, database.Queue(batch), term, to); err != nil {
			return 0, err
		}
	}
	conn, err := s.rows().Acquire(ctx)
	if err != nil {
		return 0, fmt.Errorf("expand changes of base tables: %w", err)
	}
	defer conn.Release() // A transaction that has not ended ends with its connection.
	changes := len(pieces[0]) > 0
	if changes {
		crash.Point(crash.ExpandRead)
		s.wrote = true
		defer func() { s.Metrics.Expanded.Add(float64(rows)) }()
	}
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return done, fmt.Errorf("expand changes of base tables: %w", err)
	}
	if changes {
		crash.Point(crash.ExpandWritten)
	}
	if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
		return done, fmt.Errorf("expand changes of base tables: %w", err)
	}
	return len(pieces), nil
}

// queuePiece queues what a piece does in its transaction; rows counts what it marks.
func (s *Steward) queuePiece(ctx context.Context, batch *pgx.Batch, term int64, piece []change, rows *int64) error {
	if err := s.beginPiece(ctx, database.Queue(batch), term, piece); err != nil {
		return err
	}
	images := imagesOf(piece)
	for _, id := range slices.Sorted(maps.Keys(images)) {
		r, ok := s.Catalog.ByID(id)
		if !ok {
			continue
		}
		statements, err := r.Expansion(images[id]...)
		if err != nil {
			return err
		}
		for _, one := range statements {
			batch.Queue(one.SQL, one.Args...).Exec(func(tag pgconn.CommandTag) error {
				*rows += tag.RowsAffected()
				return nil
			})
		}
	}
	return nil
}

// beginPiece makes sure of the leadership, and of what the transaction's rows belong to.
func (s *Steward) beginPiece(ctx context.Context, db store.DBTX, term int64, piece []change) error {
	queries := store.New(db)
	if err := queries.LeaderFence(ctx, store.LeaderFenceParams{Owner: s.Instance, Term: term}); err != nil {
		return fmt.Errorf("expand changes of base tables: %w", err)
	}
	if err := database.Pin(ctx, s.rows(), db); err != nil {
		return fmt.Errorf("expand changes of base tables: %w", err)
	}
	if len(piece) > 0 && piece[0].apply != 0 {
		if err := queries.ApplyExpanded(ctx, piece[0].apply); err != nil {
			return fmt.Errorf("expand changes of apply %d: %w", piece[0].apply, err)
		}
	}
	return nil
}

// imagesOf returns the images of changes by resource.
func imagesOf(piece []change) map[int32][]json.RawMessage {
	images := map[int32][]json.RawMessage{}
	for _, c := range piece {
		images[c.resourceID] = append(images[c.resourceID], json.RawMessage(c.image))
	}
	return images
}

func (s *Steward) moveCursor(ctx context.Context, db store.DBTX, term int64, to outbox.Tick) error {
	s.stored = true
	err := store.New(db).LeaderCursorWrite(ctx, store.LeaderCursorWriteParams{Owner: s.Instance, Term: term, Revision: to.Revision, Snapshot: to.Snapshot})
	if err != nil {
		return fmt.Errorf("move the leader's cursor: %w", err)
	}
	return nil
}

// nextPiece is how many changes are expanded at once, after a piece of so many took so long.
func nextPiece(size, changes int, took time.Duration) int {
	switch {
	case took > pieceLong:
		return max(changes/4, 1)
	case took < pieceLong/4 && changes == size:
		return min(size*2, pieceMax)
	}
	return size
}

func (s *Steward) expandPiece(ctx context.Context, term int64, piece []change, to outbox.Tick, last bool) error {
	return pgx.BeginFunc(ctx, s.rows(), func(tx pgx.Tx) error {
		if err := s.beginPiece(ctx, tx, term, piece); err != nil {
			return err
		}
		images := imagesOf(piece)
		for _, id := range slices.Sorted(maps.Keys(images)) {
			if r, ok := s.Catalog.ByID(id); ok {
				if err := s.expandResource(ctx, tx, r, images[id]); err != nil {
					return err
				}
			}
		}
		if !last {
			return nil
		}
		return s.moveCursor(ctx, tx, term, to)
	})
}

// expandResource marks the objects of changes that concern one resource. If they cannot be found, the whole resource is
// looked at instead: nothing is missed.
func (s *Steward) expandResource(ctx context.Context, tx pgx.Tx, r *desired.Resource, images []json.RawMessage) error {
	n, err := r.Expand(ctx, tx, images...)
	if err != nil && (ctx.Err() != nil || database.IsUnavailable(err)) {
		return err
	}
	if err != nil {
		s.Logger.Error("dependency_not_expanded", "resource", r.Name, "error", err, "effect", "the whole resource is synced instead")
		if err := store.New(tx).OutboxWhole(ctx, r.ID); err != nil {
			return fmt.Errorf("mark resource %s: %w", r.Name, err)
		}
	}
	s.wrote = true
	s.Metrics.Expanded.Add(float64(n))
	return nil
}
