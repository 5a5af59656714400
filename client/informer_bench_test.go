package client_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
)

// BenchmarkInformer measures how long an informer takes for 100,000 objects of some 600 bytes over loopback, how much memory it keeps for
// each byte of JSON, and how long it takes with a store.
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
	for _, stored := range []bool{false, true} {
		b.Run(fmt.Sprintf("stored=%t", stored), func(b *testing.B) {
			for b.Loop() {
				opts := client.InformerOptions{}
				if stored {
					opts.Store = openStore(b, filepath.Join(b.TempDir(), "objects"))
				}
				follow(b, server.URL, opts, objects, bare)
			}
		})
	}
}

// follow runs an informer until it is synced and, with a store, saved.
func follow(b *testing.B, server string, opts client.InformerOptions, objects, bare int) {
	b.Helper()
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	c, err := client.New(server)
	require.NoError(b, err)
	i := client.NewInformer(c, "eu", opts)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	before := heap()
	go func() { done <- i.Run(ctx) }()
	<-i.Synced()
	if opts.Store == nil {
		b.ReportMetric(float64(heap()-before)/float64(bare), "heap/JSON")
	}
	require.Equal(b, objects, i.Status().Objects)
	cancel()
	require.NoError(b, <-done)
}
