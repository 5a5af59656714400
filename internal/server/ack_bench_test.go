package server_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// BenchmarkAcknowledgement compares a first sync of 20,000 objects with and without acknowledgement: from the start of the server until a
// controller, whose handler does nothing, has reported every object, and the ledger has all of them as applied.
func BenchmarkAcknowledgement(b *testing.B) {
	const rows, rounds = 20_000, 3
	for b.Loop() {
		var with, without [rounds]time.Duration
		for i := range rounds {
			without[i] = firstSync(b, rows, streaming(b))
			with[i] = firstSync(b, rows, acked(b, "eu"))
		}
		slices.Sort(with[:])
		slices.Sort(without[:])
		b.ReportMetric(with[rounds/2].Seconds(), "with-s")
		b.ReportMetric(without[rounds/2].Seconds(), "without-s")
		b.ReportMetric(without[rounds/2].Seconds()/with[rounds/2].Seconds(), "of-the-rate-without")
		b.ReportMetric(0, "ns/op")
	}
}

func firstSync(b *testing.B, rows int, eu servertest.Target) time.Duration {
	b.Helper()
	w, _ := servertest.Fleet(b, rows)
	began := time.Now()
	p := w.StartWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, eu)
	c, err := client.New("http://" + address(w, "streams.listen"))
	require.NoError(b, err)
	informer := client.NewInformer(c, "eu", client.InformerOptions{})
	controller := client.NewController(informer, "app", func(context.Context, string) (client.Result, error) { return client.Applied(), nil })
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = informer.Run(ctx) })
	running.Go(func() { _ = controller.Run(ctx) })
	w.Eventually("everything is reported and applied", func() (done bool) {
		require.NoError(b, w.DB.Pool.QueryRow(b.Context(), `SELECT $1 = (SELECT count(*) FROM reconciler.observations WHERE state = 'applied')
			AND $1 = (SELECT count(*) FROM reconciler.ledger WHERE state = 'applied')`, rows).Scan(&done))
		return done
	})
	took := time.Since(began)
	cancel()
	running.Wait()
	p.Stop(b)
	return took
}
