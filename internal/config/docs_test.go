package config

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

var update = flag.Bool("update", false, "write the table of keys into docs/configuration.md")

const docsPath = "../../docs/configuration.md"

// between returns what stands between two lines of a text, and everything before and behind it.
func between(t *testing.T, text, begin, end string) (before, middle, after string) {
	t.Helper()
	before, rest, ok := strings.Cut(text, begin+"\n")
	require.True(t, ok, "docs/configuration.md has no line %s", begin)
	middle, after, ok = strings.Cut(rest, end+"\n")
	require.True(t, ok, "docs/configuration.md has no line %s after %s", end, begin)
	return before + begin + "\n", middle, end + "\n" + after
}

// knobTable is the reference in the documentation.
func knobTable() string {
	var b strings.Builder
	b.WriteString("| key | type, bounds | default | variable | meaning |\n|---|---|---|---|---|\n")
	for _, k := range Knobs() {
		typ := k.Type
		if k.Bounds != "" {
			typ += ", " + k.Bounds
		}
		def := "`" + k.Default + "`"
		switch {
		case k.Default == "":
			def = "required"
		case strings.Contains(k.Default, "`"), k.Default == "unset", k.Default == "empty":
			def = k.Default
		}
		env := "none"
		if k.Env != "" {
			env = "`" + k.Env + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.Path, typ, def, env, k.Help)
	}
	return b.String()
}

func TestDocumentationHoldsEveryKey(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(docsPath)
	require.NoError(t, err)
	before, table, after := between(t, string(content), "<!-- keys: written by go test ./internal/config -update -->", "<!-- end of keys -->")
	if *update {
		require.NoError(t, os.WriteFile(docsPath, []byte(before+knobTable()+after), 0o644))
		return
	}
	require.Equal(t, knobTable(), table, "run go test ./internal/config -update")
}

func TestExampleInDocumentationSetsEveryKey(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(docsPath)
	require.NoError(t, err)
	_, example, _ := between(t, string(content), "```yaml example", "```")
	opts, _ := setup(t, example)
	opts.Registry = nil
	cfg, err := Load(opts)
	require.NoError(t, err)
	given := map[string]bool{}
	for _, v := range cfg.Values() {
		if v.Origin != "default" && v.Origin != "" {
			given[v.Key] = true
		}
	}
	for _, k := range Knobs() {
		if k.Path != "targets" && k.Path != "targets[].options" && k.Path != "streams.tokens" && k.Path != "streams.tokens[].token_env" {
			require.True(t, given[strings.Replace(k.Path, "[]", "[0]", 1)], "the example does not set %s", k.Path)
		}
	}
}

func TestErrorInDocumentationIsWhatPeopleSee(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(docsPath)
	require.NoError(t, err)
	_, bad, rest := between(t, string(content), "```yaml bad", "```")
	_, want, _ := between(t, rest, "```text", "```")
	opts, clean := setup(t, bad)
	opts.Environ = []string{"RECONCILER_LOG_LEVLE=debug"}
	opts.Registry = driver.Registry{{Name: "file"}, {Name: "webhook"}, {Name: "exec"}, {Name: "postgres"}, {Name: "stream"}}
	_, err = Load(opts)
	require.Equal(t, want, clean(err.Error())+"\n")
}

func TestKnobsOfOneKindHaveDifferentPathsAndVariables(t *testing.T) {
	t.Parallel()
	paths, variables := map[string]bool{}, map[string]bool{}
	for _, k := range Knobs() {
		require.False(t, paths[k.Path], k.Path)
		paths[k.Path] = true
		if k.Env != "" {
			require.False(t, variables[k.Env], k.Env)
			variables[k.Env] = true
		}
		require.NotEmpty(t, k.Type, k.Path)
		require.NotEmpty(t, k.Help, k.Path)
	}
}
