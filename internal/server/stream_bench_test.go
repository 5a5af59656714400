package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// arrivals are the times at which objects arrived, by key.
type arrivals struct {
	mu sync.Mutex // guards at
	at map[int]time.Time
}

func (a *arrivals) add(key string) {
	id, _ := strconv.Atoi(key)
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.at[id]; !known {
		a.at[id] = time.Now()
	}
}

func (a *arrivals) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at)
}

// quantile returns how long after its beginning a share of the objects had arrived.
func (a *arrivals) quantile(share float64, begun map[int]time.Time) time.Duration {
	var took []time.Duration
	for id, at := range begun {
		took = append(took, a.at[id].Sub(at))
	}
	slices.Sort(took)
	return took[int(share*float64(len(took)-1))]
}

// BenchmarkStreamLatency compares the time from a commit to a client of a stream with that to a driver's call, for rows of the same
// transactions.
func BenchmarkStreamLatency(b *testing.B) {
	for _, rate := range []int{20, 200} {
		b.Run(fmt.Sprintf("%d", rate), func(b *testing.B) {
			for b.Loop() {
				streamLatency(b, rate)
			}
		})
	}
}

func streamLatency(b *testing.B, rate int) {
	b.Helper()
	w := setup(b)
	called, received := &arrivals{at: map[int]time.Time{}}, &arrivals{at: map[int]time.Time{}}
	near := newPlace()
	near.set(func(_ context.Context, c call) driver.Outcome {
		called.add(c.Key)
		return driver.Done()
	})
	w.fleet(0)
	p := w.startWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, streaming(b), named("near", near))
	f := w.watch(http.DefaultClient, "http://"+w.address("streams.listen")+"/v1/targets/eu/objects?watch=true", "")
	f.until("end_of_snapshot")
	go func() {
		for f.lines.Scan() {
			var frame struct{ Type, Key string }
			if json.Unmarshal(f.lines.Bytes(), &frame) == nil && frame.Type == "upsert" {
				received.add(frame.Key)
			}
		}
	}()
	begun, begunNear := map[int]time.Time{}, map[int]time.Time{}
	const seconds = 10
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for i := range rate * seconds {
		<-ticker.C
		begun[2*i+10], begunNear[2*i+11] = time.Now(), time.Now()
		w.db.Exec(b, `INSERT INTO apps VALUES ($1, 'eu', 'v1'), ($2, 'near', 'v1')`, 2*i+10, 2*i+11)
	}
	w.eventually("everything has arrived", func() bool { return received.count() == len(begun) && called.count() == len(begunNear) })
	for _, share := range []float64{0.5, 0.99} {
		client, call := received.quantile(share, begun), called.quantile(share, begunNear)
		b.ReportMetric(float64(client.Microseconds())/1000, fmt.Sprintf("ms-client-p%g", 100*share))
		b.ReportMetric(client.Seconds()/call.Seconds(), fmt.Sprintf("client/call-p%g", 100*share))
	}
	b.ReportMetric(0, "ns/op")
	p.stop(b)
	require.Equal(b, len(begun), received.count())
}
