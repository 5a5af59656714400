package drivers_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivers"
)

// F130: two targets of one config never have one place, whatever drives them.
func TestF130_NoTwoTargetsHaveOnePlace(t *testing.T) {
	t.Parallel()
	const (
		moves = ` is the place of target "a" too: a row that moves between them could be deleted where it arrives. `
		urls  = moves + "Give each its own URL, such as one with {target} in it"
		args  = moves + "Give each an argument or a variable of its own, such as options.env with the name of the target"
	)
	vars := map[string]string{"URL": "https://h/secret", "SAME": "https://H:443/secret", "OTHER": "https://h/other", "DB": "postgres://u:pa55word@h/db"}
	url := func(url string) driver.Options { return driver.Options{"url": url} }
	secret := func(name string) driver.Options { return driver.Options{"url_env": name} }
	program := func(args []any, more ...any) driver.Options {
		opts := driver.Options{"command": args}
		for i := 0; i < len(more); i += 2 {
			opts[more[i].(string)] = more[i+1]
		}
		return opts
	}
	for name, c := range map[string]struct {
		driver        string
		first, second driver.Options
		want          string // "" for no problem
	}{
		"URLs":            {"webhook", url("https://h/a"), url("https://h/b"), ""},
		"NestedURLs":      {"webhook", url("https://h/a"), url("https://h/a/b"), ""},
		"OneURL":          {"webhook", url("https://h/a"), url("https://h/a"), "options.url: https://h/a/{resource}/{key}" + urls},
		"WrittenAnyhow":   {"webhook", url("https://h/a"), url("HTTPS://u:pa55word@H:443/a/{resource}/{key}"), "options.url: https://h/a/{resource}/{key}" + urls},
		"Ports":           {"webhook", url("https://h/a"), url("https://h:444/a"), ""},
		"ByTarget":        {"webhook", url("https://h/{target}/{resource}/{key}"), url("https://h/{target}/{resource}/{key}"), ""},
		"ByQuery":         {"webhook", url("https://h/a?part=1"), url("https://h/a?part=2"), ""},
		"OneSecretURL":    {"webhook", secret("URL"), secret("SAME"), "options.url_env: https://h/..." + urls},
		"SecretURLs":      {"webhook", secret("URL"), secret("OTHER"), ""},
		"Programs":        {"exec", program([]any{"/bin/true"}), program([]any{"/bin/false"}), ""},
		"OneProgram":      {"exec", program([]any{"/bin/true", "x"}), program([]any{"/bin/true", "x"}, "list_command", []any{"/bin/true"}), "options.command: /bin/true" + args},
		"Arguments":       {"exec", program([]any{"/bin/true", "x"}), program([]any{"/bin/true", "y"}), ""},
		"Variables":       {"exec", program([]any{"/bin/true"}, "env", map[string]any{"A": "1"}), program([]any{"/bin/true"}, "env", map[string]any{"A": "2"}), ""},
		"WorkDirs":        {"exec", program([]any{"/bin/true"}, "dir", "/"), program([]any{"/bin/true"}), ""},
		"OneTable":        {"postgres", secret("DB"), secret("DB"), ""}, // each row has its target
		"Discard":         {"discard", nil, nil, ""},
		"Streams":         {"stream", nil, nil, ""},
		"OneDirectory":    {"file", driver.Options{"dir": "/tmp"}, driver.Options{"dir": "/tmp/"}, "options.dir: /tmp is the directory of target \"a\" too: they would delete each other's files; give each its own"},
		"DirectoryAround": {"file", driver.Options{"dir": "/tmp"}, driver.Options{"dir": "/"}, "options.dir: / has /tmp in it, the directory of target \"a\": give each its own, beside the other"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := &config.Config{Targets: []config.Target{
				{Name: "a", Driver: c.driver, Options: c.first}, {Name: "b", Driver: c.driver, Options: c.second},
			}}
			opened, err := cfg.OpenTargets(drivers.All(), driver.Env{Getenv: func(name string) string { return vars[name] }})
			if c.want != "" {
				require.ErrorContains(t, err, "targets[1]."+c.want)
				require.NotContains(t, err.Error(), "pa55word")
				return
			}
			require.NoError(t, err)
			for _, d := range opened {
				require.NoError(t, d.Close(t.Context()))
			}
		})
	}
}
