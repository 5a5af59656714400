package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivers"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// patience is far more than anything takes here.
const patience = 2 * time.Minute

// place is the target of a driver, seen without it.
type place struct {
	options map[string]any
	read    func(key string) string // "": there is none
	// write gives an object another content, or with "" none. nil: the driver cannot list, and finds no drift.
	write func(key, content string)
}

var places = map[string]func(t *testing.T) place{
	"file": func(t *testing.T) place {
		dir := t.TempDir()
		apps := filepath.Join(dir, "app")
		return place{options: map[string]any{"dir": dir}, read: reader(apps, ".json"), write: writer(t, apps, ".json")}
	},
	"exec": func(t *testing.T) place {
		dir, bin := t.TempDir(), filepath.Join(t.TempDir(), "keep")
		require.NoError(t, os.WriteFile(bin, []byte(keep), 0o700))
		return place{
			options: map[string]any{"command": []string{bin}, "list_command": []string{bin, "list"}, "env": map[string]string{"STORE_DIR": dir}},
			read:    reader(dir, ""), write: writer(t, dir, ""),
		}
	},
	"webhook": func(t *testing.T) place {
		var mu sync.Mutex
		objects := map[string]string{}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var m struct {
				Key  string
				Spec json.RawMessage
			}
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			if json.Unmarshal(body, &m) != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			if objects[m.Key] = string(m.Spec); r.Method == http.MethodDelete {
				delete(objects, m.Key)
			}
		}))
		t.Cleanup(server.Close)
		return place{options: map[string]any{"url": server.URL}, read: func(key string) string {
			mu.Lock()
			defer mu.Unlock()
			return objects[key]
		}}
	},
	"postgres": func(t *testing.T) place {
		db := pgtest.Empty(t)
		return place{
			options: map[string]any{"url_env": "FAR_URL", "create": true, "_env": db.URL},
			read: func(key string) (content string) {
				_ = db.Pool.QueryRow(context.Background(), "SELECT spec::text FROM reconciled_objects WHERE key = $1", key).Scan(&content)
				return content
			},
			write: func(key, content string) {
				if content == "" {
					db.Exec(t, "DELETE FROM reconciled_objects WHERE key = '"+key+"'")
					return
				}
				db.Exec(t, "INSERT INTO reconciled_objects SELECT target, resource, '"+key+"', '"+content+"', revision, term, now() "+
					"FROM reconciled_objects LIMIT 1 ON CONFLICT (target, resource, key) DO UPDATE SET spec = excluded.spec")
			},
		}
	},
}

// keep is a program that keeps the specs of objects in files, and lists them.
const keep = `#!/bin/sh
if [ "$1" = list ]; then
  for f in "$STORE_DIR"/*; do
    [ -e "$f" ] && printf '{"key":"%s","hash":"%s"}\n' "${f##*/}" "$(tr -d '\n' < "$f" | sha256sum | cut -c 1-32)"
  done
  exit 0
fi
message=$(cat)
key=$(printf %s "$message" | sed 's/.*"key":"\([^"]*\)".*/\1/')
case "$message" in
*'"action":"apply"'*) printf '%s\n' "$message" | sed 's/.*"spec":\(.*\)}$/\1/' > "$STORE_DIR/$key" ;;
*) rm -f "$STORE_DIR/$key" ;;
esac
`

func reader(dir, extension string) func(string) string {
	return func(key string) string {
		text, _ := os.ReadFile(filepath.Join(dir, key+extension))
		return strings.TrimSpace(string(text))
	}
}

func writer(t *testing.T, dir, extension string) func(string, string) {
	return func(key, content string) {
		path := filepath.Join(dir, key+extension)
		if content == "" {
			require.NoError(t, os.Remove(path))
			return
		}
		require.NoError(t, os.WriteFile(path, []byte(content+"\n"), 0o600))
	}
}

// A6: an agent applies, updates, deletes and repairs with each driver.
func TestEveryDriverWorksBehindAnAgent(t *testing.T) {
	t.Parallel()
	for name, newPlace := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, server := newPlace(t), streamtest.NewServer("eu")
			front := httptest.NewServer(server)
			t.Cleanup(front.Close)
			stop := runDriver(t, name, front.URL, p.options)
			t.Cleanup(stop)
			settles := func(want map[string]string) {
				t.Helper()
				require.NoError(t, pgtest.Poll(t.Context(), patience, func() error {
					for key, content := range want {
						if got := p.read(key); strings.ReplaceAll(got, " ", "") != content {
							return fmt.Errorf("%s is %q, and should be %q", key, got, content)
						}
					}
					return nil
				}))
			}
			server.Set("app", "web", spec(1))
			server.Set("app", "api", spec(1))
			settles(map[string]string{"web": `{"n":1}`, "api": `{"n":1}`})
			server.Set("app", "web", spec(2))
			server.Delete("app", "api")
			settles(map[string]string{"web": `{"n":2}`, "api": ""})
			for key, state := range map[string]client.State{"web": client.StateApplied, "api": client.StateAbsent} {
				_, err := server.WaitObserved(t.Context(), "app", key, state)
				require.NoError(t, err)
			}
			if p.write == nil {
				return
			}
			server.Set("app", "api", spec(3))
			settles(map[string]string{"api": `{"n":3}`})
			p.write("orphan", `{"n":9}`)
			p.write("web", `{"n":9}`)
			p.write("api", "")
			settles(map[string]string{"web": `{"n":2}`, "api": `{"n":3}`, "orphan": ""})
		})
	}
}

// runDriver runs an agent with a driver until the function that it returns is called.
func runDriver(t *testing.T, name, server string, options map[string]any) func() {
	t.Helper()
	farURL, _ := options["_env"].(string)
	delete(options, "_env")
	dir := t.TempDir()
	text, err := json.Marshal(map[string]any{
		"server": server, "state_dir": dir + "/state", "listen": "off",
		"targets": []any{map[string]any{"name": "eu", "driver": name, "options": options, "sync_interval": "1s"}},
	})
	require.NoError(t, err)
	path := filepath.Join(dir, "agent.json")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	cfg, opened, err := config.LoadAndOpen(config.LoadOptions{Path: path, Agent: true, Registry: drivers.All()},
		driver.Env{Getenv: func(name string) string { return map[string]string{"FAR_URL": farURL, "PATH": os.Getenv("PATH")}[name] }})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	a := New(Options{Config: cfg, Drivers: opened, Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()})
	go func() { ended <- a.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-ended)
	}
}

// An agent works without a database, so nothing that it is made of knows one.
func TestAgentImportsNothingOfTheDatabase(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	const module = "github.com/pgreconciler/reconciler/"
	packages := strings.Fields(string(out))
	require.Contains(t, packages, module+"client")
	for _, path := range packages {
		require.NotContains(t, []string{module + "internal/store", module + "internal/database"}, path)
	}
}
