package exec_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func health(t *testing.T, ctx context.Context, script string, args ...any) error {
	t.Helper()
	d := open(t, driver.Options{"command": shell("exit 1"), "health": shell(script, args...), "env_from": []any{"TOKEN"}})
	return d.(driver.HealthReporter).Health(ctx)
}

func TestOnlyAProgramWithAHealthCommandReportsHealth(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		opts           driver.Options
		lists, reports bool
	}{
		"Neither": {driver.Options{}, false, false},
		"Lists":   {driver.Options{"list_command": shell("exit 0")}, true, false},
		"Reports": {driver.Options{"health": shell("exit 0")}, false, true},
		"Both":    {driver.Options{"list_command": shell("exit 0"), "health": shell("exit 0")}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.opts["command"] = shell("exit 0")
			d := open(t, c.opts)
			_, lists := d.(driver.Lister)
			_, reports := d.(driver.HealthReporter)
			require.Equal(t, []bool{c.lists, c.reports}, []bool{lists, reports})
			require.Equal(t, driver.Done(), d.Apply(t.Context(), object("web", `{}`)))
		})
	}
}

func TestTheHealthCommandReadsWhatIsAsked(t *testing.T) {
	t.Parallel()

	out := filepath.Join(t.TempDir(), "out")
	require.NoError(t, health(t, t.Context(), `cat > "$1"`, out))
	require.Equal(t, `{"action":"health","target":"test"}`+"\n", read(t, out))
}

func TestTheExitStatusIsTheHealth(t *testing.T) {
	t.Parallel()

	for script, want := range map[string]string{
		"echo noise >&2":      "",
		"exit 1":              "sh: exit status 1",
		"echo ready; exit 75": "sh: exit status 75",
		"kill -KILL $$":       "sh: killed by a signal (killed)",
		`printf 'one\n2 of 5 are  ready\n\n' >&2; exit 3`: "sh: exit status 3: 2 of 5 are ready",
		`printf 'a\377\000' >&2; exit 3`:                  "sh: exit status 3: a\uFFFD",
		`echo "no $TOKEN" >&2; exit 3`:                    "sh: exit status 3: no [TOKEN]",
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			err := health(t, t.Context(), script)
			if want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, want)
		})
	}
}

// C69: the last line of a secret that has lines.
func TestASecretOfLinesIsHiddenBeforeTheReasonIsCut(t *testing.T) {
	t.Parallel()

	d := openWith(t, driver.Options{"command": shell("exit 0"), "health": shell(`echo "$KEY" >&2; exit 1`), "env_from": []any{"KEY"}}, map[string]string{"KEY": "first-half\nsecond-half"})
	require.EqualError(t, d.(driver.HealthReporter).Health(t.Context()), "sh: exit status 1: [KEY]")
}

func TestAHealthCommandWhoseTimeIsUpIsNotHealthy(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("timed out after 5s"))
	require.EqualError(t, health(t, ctx, "exit 0"), "sh: the command was stopped: timed out after 5s")
}
