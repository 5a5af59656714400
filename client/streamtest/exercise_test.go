package streamtest_test

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/pgreconciler/reconciler/client/streamtest"
)

// What users test against behaves as reconciler does: internal/watch has the same test of the real server.
func TestServerPassesExercise(t *testing.T) {
	t.Parallel()
	s := streamtest.NewServer("eu")
	for key := range 250 {
		s.Set("app", fmt.Sprint(key), map[string]int{"replicas": key})
	}
	s.Set("dns", "a/b ü", "text")
	s.Delete("app", "7")
	s.Keep("app", "blocked", "blocked")
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	streamtest.Exercise(t, server.URL)
}
