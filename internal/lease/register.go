package lease

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/store"
)

// noLimit stands for a nil guard: arrays of numbers have no NULL in Go.
const noLimit = -1

// register writes the rows of this process and of its targets. Stop ends it, as nothing is running yet.
func (s *session) register(live context.Context) error {
	return pgx.BeginFunc(live, s.cfg.Pool, func(tx pgx.Tx) error {
		q := store.New(tx)
		p := store.InstanceRegisterParams{ID: s.cfg.Instance, Name: s.cfg.Name, Version: s.cfg.Version, Targets: s.names, Options: s.options}
		if err := q.InstanceRegister(live, p); err != nil {
			return err
		}
		if err := q.ConfigRegister(live, store.ConfigRegisterParams{ID: s.cfg.Instance, Source: s.cfg.Source, Targets: s.names}); err != nil {
			return err
		}
		return s.describe(live, q)
	})
}

// describe makes the rows of this process's targets as its config says.
func (s *session) describe(ctx context.Context, q *store.Queries) error {
	p := store.TargetsDescribeParams{}
	for _, t := range s.cfg.Targets {
		p.Names = append(p.Names, t.Name)
		p.Drivers = append(p.Drivers, t.Driver)
		p.MaxDeletes = append(p.MaxDeletes, orElse(t.MaxDeletes, noLimit))
		p.MaxFractions = append(p.MaxFractions, orElse(t.MaxFraction, noLimit))
	}
	if err := q.TargetsInsert(ctx, p.Names); err != nil {
		return err
	}
	locked, err := q.TargetsDescribe(ctx, p)
	s.undescribed = locked > 0
	return err
}

func orElse[T any](value *T, other T) T {
	if value == nil {
		return other
	}
	return *value
}
