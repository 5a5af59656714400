package exec_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/exec"
)

func shell(script string, args ...any) []any { return append([]any{"sh", "-c", script, "sh"}, args...) }

func object(key, spec string) driver.Object {
	return driver.Object{
		Ref:  driver.Ref{Target: "eu", Resource: "apps", Key: key, Revision: 41, Term: 3},
		Spec: []byte(spec), Hash: driver.HashSpec([]byte(spec)),
	}
}

func TestTheProgramReadsTheCall(t *testing.T) {
	t.Parallel()

	out := filepath.Join(t.TempDir(), "out")
	d := open(t, driver.Options{"command": shell(`cat > "$1"`, out)})
	obj := object("köln/1", `{"b": "<&>", "a":  1.50}`)
	require.Equal(t, driver.Done(), d.Apply(t.Context(), obj))
	require.Equal(t, `{"action":"apply","target":"eu","resource":"apps","key":"köln/1","revision":41,"term":3,"hash":"`+
		obj.Hash.String()+`","spec":{"b": "<&>", "a":  1.50}}`+"\n", read(t, out))
	require.Equal(t, driver.Done(), d.Delete(t.Context(), obj.Ref))
	require.Equal(t, `{"action":"delete","target":"eu","resource":"apps","key":"köln/1","revision":41,"term":3}`+"\n", read(t, out))
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

// C26.
func TestExitStatusesBecomeOutcomes(t *testing.T) {
	t.Parallel()

	for script, want := range map[string]driver.Outcome{
		"exit 0":                          driver.Done(),
		"echo noise; echo noise >&2":      driver.Done(),
		"exit 1":                          driver.Backoff(errors.New("sh: exit status 1")),
		"exit 64":                         driver.Terminal(errors.New("sh: exit status 64")),
		"echo 'no image' >&2; exit 65":    driver.Terminal(errors.New("sh: exit status 65: no image")),
		"exit 78":                         driver.Terminal(errors.New("sh: exit status 78")),
		"exit 69":                         driver.Unreachable(errors.New("sh: exit status 69")),
		"exit 75":                         driver.Backoff(errors.New("sh: exit status 75")),
		"exit 77":                         driver.Backoff(errors.New("sh: exit status 77")),
		"no-such-tool 2>/dev/null":        driver.Backoff(errors.New("sh: exit status 127")),
		"kill -KILL $$":                   driver.Backoff(errors.New("sh: killed by a signal (killed)")),
		"echo retry-after: 30; exit 75":   driver.RetryAfter(30*time.Second, errors.New("sh: exit status 75")),
		"echo 'Retry-After:2m'; exit 75":  driver.RetryAfter(2*time.Minute, errors.New("sh: exit status 75")),
		"echo retry-after: 90h; exit 75":  driver.RetryAfter(time.Hour, errors.New("sh: exit status 75")),
		"echo retry-after: -5; exit 75":   driver.Backoff(errors.New("sh: exit status 75")),
		"echo retry-after: soon; exit 75": driver.Backoff(errors.New("sh: exit status 75")),
		"echo retry-after: 30; exit 1":    driver.Backoff(errors.New("sh: exit status 1")),
		"echo retry-after: 1; echo x; echo retry-after: 2; exit 75": driver.RetryAfter(
			2*time.Second, errors.New("sh: exit status 75")),
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()

			d := open(t, driver.Options{"command": shell(script)})
			for _, have := range []driver.Outcome{
				d.Apply(t.Context(), object("web", `{}`)), d.Delete(t.Context(), object("web", `{}`).Ref),
			} {
				require.Equal(t, want.Verdict, have.Verdict, "%v", have.Err)
				require.Equal(t, want.After, have.After)
				if want.Err != nil {
					require.EqualError(t, have.Err, want.Err.Error())
				}
			}
		})
	}
}

func TestAProgramThatVanishedMakesTheTargetUnreachable(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "apply")
	require.NoError(t, os.Symlink("/bin/sh", path))
	d := open(t, driver.Options{"command": []any{path, "-c", "exit 0"}})
	require.NoError(t, os.Remove(path))
	o := d.Apply(t.Context(), object("web", `{}`))
	require.Equal(t, driver.VerdictUnreachable, o.Verdict)
	require.EqualError(t, o.Err, "apply: start the command: fork/exec "+path+": no such file or directory")
}

func TestTheEndOfStandardErrorIsShown(t *testing.T) {
	t.Parallel()

	d := open(t, driver.Options{"command": shell(`i=0; while [ $i -lt 5000 ]; do echo "line $i"; i=$((i+1)); done >&2
		printf 'caf\303\251 \377\000 done\n' >&2; exit 1`)})
	o := d.Apply(t.Context(), object("web", `{}`))
	text := o.Err.Error()
	require.True(t, strings.HasPrefix(text, "sh: exit status 1: ..."), text)
	require.True(t, strings.HasSuffix(text, "line 4998 line 4999 café \uFFFD done"), text)
	require.Len(t, strings.TrimPrefix(text, "sh: exit status 1: "), 1000)
}

// C69.
func TestTheProgramSeesOnlyWhatItWasGiven(t *testing.T) {
	t.Parallel()

	d := open(t, driver.Options{
		"command": []any{"env"}, "env": map[string]any{"REGION": "eu"}, "env_from": []any{"TOKEN"},
		"list_command": shell(`env >&2; exit 1`),
	})
	require.Equal(t, driver.Done(), d.Apply(t.Context(), object("web", `{}`)))
	var text string
	for _, err := range d.(driver.Lister).List(t.Context(), []string{"apps"}) {
		text = err.Error()
	}
	require.Contains(t, text, "REGION=eu")
	require.Contains(t, text, "TOKEN=[TOKEN]")
	require.NotContains(t, text, token)
	require.NotContains(t, text, "RECONCILER_")
	require.NotContains(t, text, "PGPASSWORD")
	require.NotContains(t, text, "pa55word")
}

// C69: the tail of a long output begins in the middle of a secret.
func TestASecretIsHiddenBeforeTheTextIsCut(t *testing.T) {
	t.Parallel()

	for shift := range len(token) {
		d := open(t, driver.Options{
			"command": shell(`i=0; while [ $i -lt 300 ]; do printf %s "$TOKEN" >&2; i=$((i+1)); done; printf "%0$1d" 0 >&2; exit 1`, string(rune('1'+shift%9))),
			"env":     map[string]any{"PATH": os.Getenv("PATH")}, "env_from": []any{"TOKEN"},
		})
		o := d.Apply(t.Context(), object("web", `{}`))
		rest := strings.NewReplacer("[TOKEN]", "", "...", "").Replace(strings.TrimPrefix(o.Err.Error(), "sh: exit status 1: "))
		require.NotContains(t, rest, "value")
	}
}

// Issue: killed with its whole process group on timeout.
func TestNothingOutlivesACallWhoseTimeIsUp(t *testing.T) {
	t.Parallel()

	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	ctx, cancel := context.WithCancelCause(t.Context())
	opened := make(chan *os.File, 1)
	go func() {
		pipe, _ := os.Open(fifo) // returns when the program has it open
		opened <- pipe
		cancel(errors.New("timed out after 5s"))
	}()
	d := open(t, driver.Options{"command": shell(`echo half done >&2; exec 9>"$1"; (trap "" TERM; sleep 1000; sleep 1000) & wait`, fifo)})
	o := d.Apply(ctx, object("web", `{}`))
	require.Equal(t, driver.VerdictBackoff, o.Verdict)
	require.EqualError(t, o.Err, "sh: the command was stopped: timed out after 5s: half done")
	pipe := <-opened
	_, err := io.ReadAll(pipe) // returns when the last process of the group is gone
	require.NoError(t, err)
	require.NoError(t, pipe.Close())
}

func TestANameThatIsNoTextIsRefused(t *testing.T) {
	t.Parallel()

	d := open(t, driver.Options{"command": shell("exit 1")})
	o := d.Apply(t.Context(), object("\xff", `{}`))
	require.Equal(t, driver.VerdictTerminal, o.Verdict)
	require.EqualError(t, o.Err, `the name "\xff" is not valid UTF-8`)
	require.Equal(t, driver.Done(), d.Delete(t.Context(), object("\xff", `{}`).Ref))
}

func TestOnlyAProgramWithAListCommandLists(t *testing.T) {
	t.Parallel()

	_, lists := open(t, driver.Options{"command": shell("exit 0")}).(driver.Lister)
	require.False(t, lists)
	_, lists = open(t, driver.Options{"command": shell("exit 0"), "list_command": shell("exit 0")}).(driver.Lister)
	require.True(t, lists)
}

// C64.
func TestOpenReportsEveryProblem(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		opts driver.Options
		want driver.Problems
	}{
		"Nothing": {driver.Options{}, driver.Problems{{
			Path: "options.command", Text: `is required: a list that begins with a program, such as ["/usr/local/bin/apply"]`,
		}}},
		"AShellLine": {driver.Options{"command": "rm -rf /"}, driver.Problems{
			{Path: "options.command", Text: "must be a list of strings, not this string"},
		}},
		"Everything": {driver.Options{
			"command": []any{"/no/such/program"}, "list_command": []any{""}, "health": []any{}, "dir": "/no/such/dir", "env": map[string]any{"A=B": "x", "C": 1},
			"env_from": []any{"NOT_SET", "x y"}, "shell": true,
		}, driver.Problems{
			{Path: "options.command", Text: "the program /no/such/program cannot be run: stat /no/such/program: no such file or directory"},
			{Path: "options.list_command", Text: `must be a list that begins with a program, such as ["systemctl", "reload", "nginx"]`},
			{Path: "options.health", Text: `must be a list that begins with a program, such as ["systemctl", "reload", "nginx"]`},
			{Path: "options.dir", Text: "there is no directory /no/such/dir"},
			{Path: "options.env.C", Text: "must be a string, not a number"},
			{Path: "options.env", Text: `"A=B" cannot be the name of an environment variable (letters, digits and _)`},
			{Path: "options.env_from", Text: "the environment variable NOT_SET is not set"},
			{Path: "options.env_from", Text: "must be the name of an environment variable (letters, digits and _), not its value"},
			{Path: "options.shell", Text: "unknown option; known here: command, dir, env, env_from, health, list_command, list_timeout"},
		}},
		"Twice": {driver.Options{"command": []any{"sh"}, "env": map[string]any{"TOKEN": "x"}, "env_from": []any{"TOKEN"}}, driver.Problems{
			{Path: "options.env_from", Text: "TOKEN stands in env too: give one of the two"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			vars := map[string]string{"TOKEN": token}
			d, err := exec.Kind().Open("test", c.opts, driver.Env{Getenv: func(name string) string { return vars[name] }})
			require.Nil(t, d)
			require.Equal(t, c.want, err)
		})
	}
}
