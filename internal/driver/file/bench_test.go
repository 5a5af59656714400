package file_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/file"
)

// BenchmarkApply writes new files. Run it on the disk in question (TMPDIR): what counts is its fsync.
func BenchmarkApply(b *testing.B) {
	for _, fsync := range []bool{true, false} {
		for _, workers := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("fsync=%t/workers=%d", fsync, workers), func(b *testing.B) {
				d, err := file.Kind().Open("test", driver.Options{"dir": b.TempDir(), "fsync": fsync}, env())
				require.NoError(b, err)
				var n atomic.Int64
				b.SetParallelism(workers)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						d.Apply(b.Context(), object(fmt.Sprint(n.Add(1)), `{"image": "web:1", "replicas": 3}`))
					}
				})
				require.NoError(b, d.Close(b.Context()))
			})
		}
	}
}
