package stream

import (
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
)

const (
	historyDefault = 24 * time.Hour
	historyMin     = time.Minute
	historyMax     = 366 * 24 * time.Hour
)

// Kind is the driver `stream`.
func Kind() driver.Kind { return driver.Kind{Name: "stream", Open: open} }

func open(_ string, opts driver.Options, _ driver.Env) (driver.Driver, error) {
	r := options.New(opts)
	p := &Publisher{history: r.Duration("history", historyDefault, historyMin, historyMax), ack: r.Bool("ack", false)}
	if err := r.Err(); err != nil {
		return nil, err
	}
	if p.ack {
		return &acknowledged{p}, nil
	}
	return p, nil
}

// Of returns the publisher of a driver, if it is one of this package.
func Of(d any) (*Publisher, bool) {
	p, ok := d.(interface{ self() *Publisher })
	if !ok {
		return nil, false
	}
	return p.self(), true
}
