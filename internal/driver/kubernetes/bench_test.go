//go:build kubernetes

package kubernetes

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	benchObjects = 1000
	benchRounds  = 5
	benchCalls   = 16 // at once
)

// each calls do for n objects, several at once, and returns how many a second.
func each(n int, do func(i int)) float64 {
	began := time.Now()
	var wg sync.WaitGroup
	work := make(chan int)
	for range benchCalls {
		wg.Go(func() {
			for i := range work {
				do(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	return float64(n) / time.Since(began).Seconds()
}

// BenchmarkApply compares the driver with a bare loop of server-side applies of the same objects, in turns on one server.
func BenchmarkApply(b *testing.B) {
	bed := realBed(b)
	ratios := map[string][]float64{}
	for round := range benchRounds {
		bed.namespace = bed.newNamespace(b)
		bare := func(value string) float64 {
			return each(benchObjects, func(i int) {
				body := &unstructured.Unstructured{Object: configMap(fmt.Sprint("bare-", i), one(value))}
				_, err := bed.admin.Resource(configMaps).Namespace(bed.namespace).Apply(b.Context(), body.GetName(), body, metav1.ApplyOptions{FieldManager: "bare"})
				require.NoError(b, err)
			})
		}
		c := bed.open(b, "prod", nil)
		memories := make([][]byte, benchObjects)
		ours := func(value string) float64 {
			return each(benchObjects, func(i int) {
				spec, err := json.Marshal(configMap(fmt.Sprint("ours-", i), one(value)))
				require.NoError(b, err)
				ref := c.ref(fmt.Sprint(i))
				ref.Memory = memories[i]
				out := c.Driver.Apply(b.Context(), driver.Object{Ref: ref, Spec: spec})
				require.Equal(b, driver.VerdictDone, out.Verdict, "%v", out.Err)
				memories[i] = out.Memory
			})
		}
		for _, step := range []struct{ name, value string }{{"create", "1"}, {"change", "2"}, {"unchanged", "2"}} {
			var mine, theirs float64
			if round%2 == 0 {
				mine, theirs = ours(step.value), bare(step.value)
			} else {
				theirs, mine = bare(step.value), ours(step.value)
			}
			b.Logf("%s: driver %.0f/s, bare loop %.0f/s, ratio %.2f", step.name, mine, theirs, mine/theirs)
			ratios[step.name] = append(ratios[step.name], mine/theirs)
		}
	}
	for name, all := range ratios {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], name+"-ratio")
	}
}
