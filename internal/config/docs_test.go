package config

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

var update = flag.Bool("update", false, "write the table of keys into docs/configuration.md")

// docsOf are the pages with the keys of the daemon and of the agent.
var docsOf = map[bool]string{false: "../../docs/configuration.md", true: "../../docs/agents.md"}

// between returns what stands between two lines of a text, and everything before and behind it.
func between(t *testing.T, text, begin, end string) (before, middle, after string) {
	t.Helper()
	before, rest, ok := strings.Cut(text, begin+"\n")
	require.True(t, ok, "the page has no line %s", begin)
	middle, after, ok = strings.Cut(rest, end+"\n")
	require.True(t, ok, "the page has no line %s after %s", end, begin)
	return before + begin + "\n", middle, end + "\n" + after
}

// knobTable is the reference in the documentation.
func knobTable(agent bool) string {
	var b strings.Builder
	b.WriteString("| key | type, bounds | default | variable | meaning |\n|---|---|---|---|---|\n")
	for _, k := range Knobs(agent) {
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
	for agent, path := range docsOf {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		before, table, after := between(t, string(content), "<!-- keys: written by go test ./internal/config -update -->", "<!-- end of keys -->")
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(before+knobTable(agent)+after), 0o644))
			continue
		}
		require.Equal(t, knobTable(agent), table, "%s: run go test ./internal/config -update", path)
	}
}

func TestExampleInDocumentationSetsEveryKey(t *testing.T) {
	t.Parallel()
	without := []string{"targets", "targets[].options", "streams.tokens", "streams.tokens[].token_env", "token_env"}
	for agent, path := range docsOf {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		_, example, _ := between(t, string(content), "```yaml example", "```")
		opts, _ := setup(t, "")
		opts.Registry, opts.Agent, opts.Path = nil, agent, writeFile(t, opts.Dir, "example.yaml", example)
		cfg, err := Load(opts)
		require.NoError(t, err)
		given := map[string]bool{}
		for _, v := range cfg.Values() {
			if v.Origin != "default" && v.Origin != "" {
				given[v.Key] = true
			}
		}
		for _, k := range Knobs(agent) {
			if !slices.Contains(without, k.Path) {
				require.True(t, given[strings.Replace(k.Path, "[]", "[0]", 1)], "the example in %s does not set %s", path, k.Path)
			}
		}
	}
}

func TestErrorInDocumentationIsWhatPeopleSee(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(docsOf[false])
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
	for _, k := range Knobs(false) {
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

// What docs/agents.md shows is a config of an agent.
func TestConfigOfAgentInDocumentationIsValid(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(docsOf[true])
	require.NoError(t, err)
	_, start, ok := strings.Cut(string(page), "write `agent.yaml`:\n\n```yaml\n")
	require.True(t, ok)
	start, _, _ = strings.Cut(start, "```")
	opts, _ := setup(t, "")
	opts.Registry, opts.Agent, opts.Path = nil, true, writeFile(t, opts.Dir, "agent.yaml", start)
	cfg, err := Load(opts)
	require.NoError(t, err)
	require.Len(t, cfg.Targets, 1)
}
