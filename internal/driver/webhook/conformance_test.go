package webhook_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"testing"
	"unicode/utf8"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/driver/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	token  = "t0ken-value"
)

// message is what a receiver reads.
type message struct {
	Action   string          `json:"action"`
	Target   string          `json:"target"`
	Resource string          `json:"resource"`
	Key      string          `json:"key"`
	Revision int64           `json:"revision"`
	Term     int64           `json:"term"`
	Hash     string          `json:"hash"`
	Spec     json.RawMessage `json:"spec"`
}

// receiver is an endpoint as a user would write one, with a map behind it.
type receiver struct {
	mu      sync.Mutex
	objects map[[2]string]string   // guarded by mu
	paths   map[string][2]string   // guarded by mu: which object a path belongs to
	newest  map[[2]string][2]int64 // guarded by mu: term and revision that an object has
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = rc.take(r, body)
	}
	if err != nil {
		// Repeats what it got, as careless endpoints do.
		http.Error(w, fmt.Sprintf("%v: %v %s", err, r.Header, r.URL), http.StatusTeapot)
	}
}

func (rc *receiver) take(r *http.Request, body []byte) error {
	verifier, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return err
	}
	if err := verifier.Verify(body, r.Header); err != nil {
		return err
	}
	if got := r.Header.Get("Authorization"); got != "Bearer "+token {
		return fmt.Errorf("unknown credentials %s", got)
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		return err
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	name := [2]string{m.Resource, m.Key}
	if other, ok := rc.paths[r.URL.EscapedPath()]; ok && other != name {
		return fmt.Errorf("%q and %q have one path: %s", name, other, r.URL.EscapedPath())
	}
	rc.paths[r.URL.EscapedPath()] = name
	// A request whose sender has gone may be read late.
	at := [2]int64{m.Term, m.Revision}
	if seen := rc.newest[name]; slices.Compare(at[:], seen[:]) < 0 {
		return nil
	}
	rc.newest[name] = at
	switch {
	case r.Method == http.MethodPut && m.Action == "apply":
		rc.objects[name] = string(m.Spec)
	case r.Method == http.MethodDelete && m.Action == "delete" && m.Spec == nil:
		delete(rc.objects, name)
	default:
		return fmt.Errorf("%s with action %s", r.Method, m.Action)
	}
	return nil
}

func getenv(name string) string {
	return map[string]string{"HOOK_SECRET": secret, "HOOK_TOKEN": "Bearer " + token}[name]
}

func open(t *testing.T, opts driver.Options) driver.Driver {
	t.Helper()
	d, err := webhook.Kind().Open("test", opts, driver.Env{Getenv: getenv})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(t.Context())) })
	return d
}

func TestConformance(t *testing.T) {
	t.Parallel()

	drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture {
		rc := &receiver{objects: map[[2]string]string{}, paths: map[string][2]string{}, newest: map[[2]string][2]int64{}}
		mux := http.NewServeMux()
		mux.Handle("/hooks/", rc)
		mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		wd, err := os.ReadDir(".")
		require.NoError(t, err)
		return drivertest.Fixture{
			Driver: open(t, driver.Options{
				"url": server.URL + "/hooks", "secret_env": "HOOK_SECRET", "headers_env": map[string]any{"Authorization": "HOOK_TOKEN"},
				"health_url": server.URL + "/health",
			}),
			Target: "test",
			Read: func(_ *testing.T, resource, key string) (string, bool) {
				rc.mu.Lock()
				defer rc.mu.Unlock()
				spec, ok := rc.objects[[2]string{resource, key}]
				return spec, ok
			},
			Count: func(*testing.T) int {
				rc.mu.Lock()
				defer rc.mu.Unlock()
				return len(rc.objects)
			},
			Refuses: func(name string) bool { return !utf8.ValidString(name) },
			Intact: func(t *testing.T) {
				now, err := os.ReadDir(".")
				require.NoError(t, err)
				require.Len(t, now, len(wd))
			},
			Secrets: []string{secret, secret[6:], token},
		}
	})
}
