package drivertest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// HostileNames are names that were made to do harm or to be taken for one another. // C68.
func HostileNames() []string {
	names := []string{
		"", " ", "  ", ".", "..", "...", "/", "//", `\`, "-", "--", "-rf", "--help", "~", "~root", "*", "?", "#", "&", "=",
		"../../etc/passwd", "/etc/passwd", `..\..\windows`, "a/../b", "a/./b", "a//b", "a/b", "a", "b", "a/", "/a", "a/b/",
		"%", "%%", "%2e%2e%2f", "%2F", "%252F", "%00", "%zz", "a%2Fb", "a%252Fb", "+", "a+b", "a b", "a%20b",
		"'; drop table objects; --", `"; drop table objects; --`, "$(touch harm)", "`touch harm`", "; touch harm", "|cat", "${HOME}",
		"{key}", "{resource}", "a?b=c#d", "user:pass@host", "..;/", "a;b", "a,b", `{"a": 1}`, `["a","b"]`, "null",
		"\n", "\r\n", "line\nbreak", "header\r\nX-Harm: 1", "tab\tbed", "\x1b[2J", "\x01", "\x7f", "nul\x00byte", "nul",
		"<script>alert(1)</script>", ".json", "x.json", "x", ".tmp", ".reconciler-x.tmp", "con", "name.", "name", "NAME",
		"é", "e\u0301", "ﬁ", "fi", "ſ", "İ", "ı", "日本語", "\u202egpj", "\ufeff", "\u2028", "😀", "\xff", "\xc3", "\xff\xfe",
	}
	return append(names,
		strings.Repeat("a", 200), strings.Repeat("a", 200)+"/", strings.Repeat("a", 200)+".json", strings.Repeat("a", 201),
		strings.Repeat("a", 200)+"%", strings.Repeat("../", 30))
}

func hostileKeys(t *testing.T, b *bench) {
	names := HostileNames()
	b.applyNames(t, names, func(name string) (string, string) { return "apps", name })
	for _, name := range names {
		b.requireDone(t, b.delete(t, "apps", name))
		b.requireAbsent(t, "apps", name)
	}
	require.Zero(t, b.Count(t))
}

func hostileResources(t *testing.T, b *bench) {
	names := HostileNames()
	b.applyNames(t, names, func(name string) (string, string) { return name, "web" })
	for _, name := range names {
		b.requireDone(t, b.delete(t, name, "web"))
		b.requireAbsent(t, name, "web")
	}
	require.Zero(t, b.Count(t))
}

// applyNames applies an object for each name, and then finds every one as it was applied.
func (b *bench) applyNames(t *testing.T, names []string, place func(name string) (resource, key string)) {
	t.Helper()
	applied := map[string]string{}
	for i, name := range names {
		resource, key := place(name)
		spec := fmt.Sprintf(`{"number": %d}`, i)
		outcome := b.apply(t, resource, key, spec)
		if b.mayRefuse(name) {
			require.Equal(t, driver.VerdictTerminal, outcome.Verdict, "name %q, error: %v", name, outcome.Err)
			continue
		}
		require.Equal(t, driver.VerdictDone, outcome.Verdict, "name %q, error: %v", name, outcome.Err)
		applied[name] = spec
	}
	for name, spec := range applied {
		resource, key := place(name)
		b.requireHas(t, resource, key, spec)
	}
	require.Equal(t, len(applied), b.Count(t))
}

// C9.
func longKeys(t *testing.T, b *bench) {
	names := []string{
		strings.Repeat("k", 1024), strings.Repeat("k", 1023), strings.Repeat("k", 1023) + "/",
		strings.Repeat("é", 512), strings.Repeat("日", 341), strings.Repeat("/", 1024), strings.Repeat("\n", 1024),
		strings.Repeat(".", 1024), strings.Repeat("k", 600) + "a", strings.Repeat("k", 600) + "b",
	}
	b.applyNames(t, names, func(name string) (string, string) { return "apps", name })
	b.requireDone(t, b.delete(t, "apps", names[0]))
	b.requireAbsent(t, "apps", names[0])
	require.Equal(t, len(names)-1, b.Count(t))
	for _, name := range names {
		b.requireDone(t, b.delete(t, "apps", name))
	}
	require.Zero(t, b.Count(t))

	// What no target could name may be refused, but not by another verdict, and not half.
	huge := strings.Repeat("é", 1<<16)
	if outcome := b.apply(t, "apps", huge, `{}`); outcome.Verdict != driver.VerdictDone {
		require.Equal(t, driver.VerdictTerminal, outcome.Verdict, "error: %v", outcome.Err)
		require.Zero(t, b.Count(t))
	}
	b.requireDone(t, b.delete(t, "apps", huge))
	require.Zero(t, b.Count(t))
}
