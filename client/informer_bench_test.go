package client_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
)

// BenchmarkInformer measures how long an informer takes for 100,000 objects of some 600 bytes over loopback, and how much memory it keeps
// for each byte of JSON.
func BenchmarkInformer(b *testing.B) {
	const objects = 100_000
	var frames bytes.Buffer
	bare := 0
	for n := range objects {
		spec := fmt.Sprintf(`{"id": %d, "image": "registry.example.org/team/app:v%d", "config": %q}`, n, n%100, strings.Repeat("abcdefghij", 52))
		bare += len(spec)
		fmt.Fprintf(&frames, `{"type":"upsert","resource":"app","key":"app-%d","version":%d,"revision":1,"hash":"%032x","spec":%s}`+"\n",
			n, n+1, n, spec)
	}
	frames.WriteString(`{"type":"end_of_snapshot","bookmark":"b","revision":1}` + "\n")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Reconciler-Installation", "i")
		_, _ = w.Write(frames.Bytes())
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	b.Cleanup(server.Close)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for b.Loop() {
		c, err := client.New(server.URL)
		require.NoError(b, err)
		i := client.NewInformer(c, "eu", client.InformerOptions{})
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		before := heap()
		go func() { done <- i.Run(ctx) }()
		<-i.Synced()
		b.ReportMetric(float64(heap()-before)/float64(bare), "heap/JSON")
		require.Equal(b, objects, i.Status().Objects)
		cancel()
		require.NoError(b, <-done)
	}
}
