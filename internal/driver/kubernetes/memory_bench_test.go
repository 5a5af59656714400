//go:build kubernetes

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// heapMB returns what is in use of the heap after a collection.
func heapMB() float64 {
	runtime.GC()
	runtime.GC() // what finalizers have let go
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc) / (1 << 20)
}

// BenchmarkWatchedObjects measures the heap that 10,000 objects take which the driver has applied and watches, beside foreign ones of the same
// kind: more than that of the open driver, without the watch and with it.
func BenchmarkWatchedObjects(b *testing.B) {
	const objects = 10_000
	for _, foreign := range []int{0, 10_000, 100_000} {
		b.Run(fmt.Sprintf("Beside%d", foreign), func(b *testing.B) {
			bed := realBed(b)
			bed.namespace = bed.newNamespace(b)
			each(foreign, func(i int) {
				body := &unstructured.Unstructured{Object: configMap(fmt.Sprint("foreign-", i), one("1"))}
				_, err := bed.admin.Resource(configMaps).Namespace(bed.namespace).Create(b.Context(), body, metav1.CreateOptions{})
				require.NoError(b, err)
			})
			c := bed.open(b, "prod", driver.Options{"force_managers": []any{"editor"}})
			none := heapMB()
			each(objects, func(i int) {
				spec, err := json.Marshal(configMap(fmt.Sprint("ours-", i), one("1")))
				require.NoError(b, err)
				out := c.Driver.Apply(b.Context(), driver.Object{Ref: c.ref(fmt.Sprint(i)), Spec: spec})
				require.Equal(b, driver.VerdictDone, out.Verdict, "%v", out.Err)
			})
			unwatched := heapMB()
			defer bed.follow(b, c)()
			b.ReportMetric(unwatched-none, "MB-unwatched")
			b.ReportMetric(heapMB()-none, "MB-watched")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// follow begins a watch, and returns when it has named an object that was edited.
func (b *bed) follow(t testing.TB, c *caller) (stop func()) {
	t.Helper()
	watched, ok := c.Driver.(driver.Watcher)
	require.True(t, ok)
	ctx, cancel := context.WithCancel(t.Context())
	named, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_ = watched.Watch(ctx, func(_, key string) {
			select {
			case named <- key:
			default:
			}
		})
	}()
	for edits := 0; ; edits++ {
		_, err := b.admin.Resource(configMaps).Namespace(b.namespace).Patch(t.Context(), "ours-1", types.MergePatchType,
			fmt.Appendf(nil, `{"data": {"a": "edit %d"}}`, edits), metav1.PatchOptions{FieldManager: "editor"})
		require.NoError(t, err)
		select {
		case <-named:
			return func() { cancel(); <-ended }
		case <-time.After(time.Second): // it does not watch yet
		}
	}
}
