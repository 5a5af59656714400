package client

import (
	"context"
	"errors"
	"time"
)

// WatchPatiently is Watch with another silenceMost.
func (c *Client) WatchPatiently(ctx context.Context, target string, silence time.Duration, yield func(Frame) bool) error {
	w := &watch{client: c, target: target, silence: silence, yield: func(f Frame, _ error) bool { return yield(f) }}
	if err := w.run(ctx); !errors.Is(err, errStopped) {
		return err
	}
	return nil
}

// Values returns how many values the index has.
func (x *Index[T]) Values() int { return len(x.index.keys) }

// Take has an informer take a frame, without a server. The first one begins a snapshot.
func (i *Informer) Take(ctx context.Context, f Frame) {
	if !i.begun {
		_ = i.begin()
		i.restart(resetCut)
	}
	i.take(ctx, f)
}
