package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/measure"
	"github.com/pgreconciler/reconciler/internal/server"
	"github.com/pgreconciler/reconciler/internal/stream"
)

const (
	streamTarget = "stream"
	// hotVersions is how often the hot row changes beside an open transaction.
	hotVersions = 10_000
)

// streaming adds a stream target, and serves it at an address.
func streaming(address string) func(*server.Options) {
	publisher := must(stream.Kind().Open(streamTarget, driver.Options{}, driver.Env{}))
	return func(o *server.Options) {
		t := o.Config.Targets[0]
		t.Name, t.Driver = streamTarget, "stream"
		o.Config.Targets = append(o.Config.Targets, t)
		o.Config.Streams = config.Streams{Listen: address}
		o.Drivers[streamTarget] = publisher
	}
}

// follow has the sink called for each object that a client of the stream receives, until ctx ends. It returns when the
// snapshot is there.
func follow(ctx context.Context, address string, s *measure.Sink) {
	c := must(client.New("http://" + address))
	began := make(chan error, 1)
	go func() {
		for frame, err := range c.Watch(ctx, streamTarget, client.WatchOptions{}) {
			switch {
			case err != nil:
				began <- err // the snapshot was there, or this is why not
				return
			case frame.Type == client.EndOfSnapshot:
				began <- nil
			case frame.Type == client.Upsert:
				s.Apply(ctx, driver.Object{Ref: driver.Ref{Key: frame.Object.Key}})
			}
		}
	}()
	check(<-began)
}

// benchStreams measures from commit to a client of a stream, against commit to driver call, and a row that changes again and
// again beside an open transaction.
func benchStreams(ctx context.Context, l *lab) []Figure {
	l.fresh(ctx, append(writtenSchema(),
		`CREATE TABLE streamed (LIKE plain INCLUDING ALL); INSERT INTO streamed SELECT * FROM plain`,
		`SELECT reconciler.track('streamed', 'streamed', '{id}', '''stream''')`, `VACUUM ANALYZE`)...)
	address := freeAddress(ctx)
	called, stop := l.within(ctx, streaming(address))
	defer stop()
	received := &measure.Sink{}
	following, end := context.WithCancel(ctx)
	defer end()
	follow(following, address, received)
	values := points{}
	for range l.rounds {
		for _, rate := range []int{slowRate, 200} {
			for table, s := range map[string]*measure.Sink{"tracked": called, "streamed": received} {
				values.note(table+" "+strconv.Itoa(rate), must(measure.Changes(ctx, s, l.pace(table, rate, max(l.rows(200), rate*3)))))
			}
		}
	}
	versions := l.rows(hotVersions)
	hot := func(name string) {
		times := l.changeOne(ctx, received, versions)
		last := times[versions-versions/10:]
		slices.Sort(last)
		values.note(name, last)
	}
	hot("alone")
	reader := must(l.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))
	defer func() { _ = reader.Rollback(ctx) }() // a broken connection is gone with it
	must(reader.Exec(ctx, "SELECT count(*) FROM streamed"))
	hot("beside")
	return streamFigures(values, versions)
}

// changeOne changes one row this often. It returns the times from commit to client, in the order of the changes.
func (l *lab) changeOne(ctx context.Context, s *measure.Sink, versions int) []time.Duration {
	times := make([]time.Duration, versions)
	for i := range times {
		received := s.Expect("1")
		sent := time.Now()
		l.exec(ctx, `UPDATE streamed SET n = n + 1 WHERE id = 1`)
		select {
		case at := <-received:
			times[i] = at.Sub(sent)
		case <-ctx.Done():
			check(ctx.Err())
		}
	}
	return times
}

func streamFigures(values map[string][]float64, versions int) []Figure {
	figure := func(what, of, against, limit, point string) Figure {
		return Figure{
			Bench: "streams", What: what + ", " + point, Unit: "ms", Values: values[of+" "+point], Against: against, Limits: values[limit+" "+point],
		}.atMost(2, "≤ 2")
	}
	hot := fmt.Sprintf("one row, beside an open transaction: update to client, last tenth of %d versions", versions)
	var figures []Figure
	for _, point := range []string{"p50", "p99"} {
		figures = append(figures,
			figure("20 changes/s, commit to client", "streamed 20", "commit to driver call", "tracked 20", point),
			figure("200 changes/s, commit to client", "streamed 200", "commit to driver call", "tracked 200", point),
			figure(hot, "beside", "without the transaction", "alone", point))
	}
	return figures
}
