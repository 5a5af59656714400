package sync

import (
	"context"
	"iter"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/loop"
)

// heard is a Lister whose silence shows: while it names no object, a turn of the loop is under way.
type heard struct {
	driver.Lister

	loop *loop.Loop
}

func (h heard) List(ctx context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		h.loop.Began()
		defer h.loop.Succeeded()
		for one, err := range h.Lister.List(ctx, resources) {
			h.loop.Succeeded()
			if !yield(one, err) {
				return
			}
			h.loop.Began()
		}
	}
}
