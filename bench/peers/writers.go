package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// pace is the time between two changes where latency is measured: about 143 a second, and no divisor of anybody's poll.
const pace = 7 * time.Millisecond

// next makes the next version of a row.
func (s *site) next(id int) change {
	s.version[id]++
	return change{id, s.version[id]}
}

// trickle commits one change after the other at the pace, over one connection, while more says so.
func (s *site) trickle(ctx context.Context, ids int, more func(made int) bool) ([]sent, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	var commits []sent
	for more(len(commits)) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-ticker.C:
		}
		c := s.next(len(commits)%ids + 1)
		at, err := s.peer.commit(ctx, conn.Conn(), c)
		if err != nil {
			return nil, err
		}
		commits = append(commits, sent{c, at})
	}
	return commits, nil
}

// ownRows is how many of the rows 1 to ids belong to writer w of so many.
func ownRows(ids, writers, w int) int { return (ids - w + writers - 1) / writers }

// rowOf is the i-th of them.
func rowOf(writers, w, i int) int { return i*writers + w + 1 }

// flood lets many writers commit as fast as they can for a time, each on rows of its own, so that row locks measure
// nothing, and returns what they committed and how long that took.
func (s *site) flood(ctx context.Context, writers, ids int, length time.Duration, commit func(context.Context, *pgx.Conn, int) (change, error)) ([]change, time.Duration, error) {
	conns := make([]*pgxpool.Conn, writers) // all there before the clock runs
	for w := range conns {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return nil, 0, fmt.Errorf("connect: %w", err)
		}
		defer conn.Release()
		conns[w] = conn
	}
	each := make([][]change, writers)
	group, groupCtx := errgroup.WithContext(ctx)
	began := time.Now()
	for w, conn := range conns {
		group.Go(func() error {
			own := ownRows(ids, writers, w)
			for time.Since(began) < length {
				c, err := commit(groupCtx, conn.Conn(), rowOf(writers, w, rand.IntN(own)))
				if err != nil {
					return err
				}
				each[w] = append(each[w], c)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	return slices.Concat(each...), time.Since(began), nil
}
