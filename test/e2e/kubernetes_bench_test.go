package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// sightings are when an image of a ConfigMap was seen in the cluster, by a watch.
type sightings struct {
	seen chan sighting
}

type sighting struct {
	text string // name and image
	at   time.Time
}

func (c *cluster) sightings(b *testing.B) *sightings {
	b.Helper()
	watch, err := c.maps.Watch(b.Context(), metav1.ListOptions{})
	require.NoError(b, err)
	b.Cleanup(watch.Stop)
	s := &sightings{seen: make(chan sighting, 10_000)}
	go func() {
		for event := range watch.ResultChan() {
			if one, ok := event.Object.(*unstructured.Unstructured); ok {
				image, _, _ := unstructured.NestedString(one.Object, "data", "image")
				s.seen <- sighting{one.GetName() + " " + image, time.Now()}
			}
		}
	}()
	return s
}

// since makes a change, and returns the time from then until a ConfigMap has an image.
func (s *sightings) since(b *testing.B, name, image string, change func()) time.Duration {
	b.Helper()
	for len(s.seen) > 0 {
		<-s.seen
	}
	change()
	began := time.Now()
	late := time.After(patience)
	for {
		select {
		case one := <-s.seen:
			if one.text == name+" "+image {
				return max(one.at.Sub(began), 0)
			}
		case <-late:
			require.Fail(b, "it is not seen", "%s %s", name, image)
		}
	}
}

func milliseconds(times []time.Duration, percent int) float64 {
	slices.Sort(times)
	return float64(times[(len(times)-1)*percent/100].Microseconds()) / 1000
}

// BenchmarkClusterLatency measures, 20 times a second: from a commit until a watch of the cluster shows it, against a bare call; and from an
// edit by hand until it is repaired.
func BenchmarkClusterLatency(b *testing.B) {
	const rows, every = 500, 50 * time.Millisecond
	c := newMappedCluster(b)
	w := c.w
	w.exec(`INSERT INTO apps SELECT 'app' || i, 'v1', '{a}' FROM generate_series(1, $1) AS i`, rows)
	w.start()
	w.becomes(fmt.Sprint(rows+2), `SELECT count(*) FROM reconciler.objects WHERE state = 'applied'`)
	seen := c.sightings(b)
	bare := configMapNamed("bare", "v1")
	_, err := c.maps.Create(b.Context(), bare, metav1.CreateOptions{})
	require.NoError(b, err)
	var commits, calls, repairs []time.Duration
	turn := time.NewTicker(every)
	defer turn.Stop()
	for i := 1; i <= rows; i++ {
		name, image := fmt.Sprint("app", i), fmt.Sprint("v", i+1)
		<-turn.C
		commits = append(commits, seen.since(b, name+"-a", image, func() {
			w.exec(`UPDATE apps SET image = $1 WHERE name = $2`, image, name)
		}))
		<-turn.C
		began := time.Now()
		_, err := c.maps.Apply(context.Background(), "bare", configMapNamed("bare", image), metav1.ApplyOptions{FieldManager: "bare", Force: true})
		require.NoError(b, err)
		calls = append(calls, time.Since(began))
	}
	for i := 1; i <= rows; i++ {
		name, image := fmt.Sprint("app", i), fmt.Sprint("v", i+1)
		<-turn.C
		repairs = append(repairs, seen.since(b, name+"-a", image, func() { c.edit(name+"-a", "kubectl", `{"data": {"image": "mine"}}`) }))
	}
	b.ReportMetric(milliseconds(commits, 99), "ms-commit-p99")
	b.ReportMetric(milliseconds(calls, 99), "ms-call-p99")
	b.ReportMetric(milliseconds(repairs, 99), "ms-repair-p99")
	b.ReportMetric(milliseconds(repairs, 50), "ms-repair-p50")
	b.ReportMetric(0, "ns/op")
}

func configMapNamed(name, image string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": map[string]any{"image": image},
	}}
}
