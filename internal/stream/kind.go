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
	p := &Publisher{history: r.Duration("history", historyDefault, historyMin, historyMax)}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return p, nil
}
