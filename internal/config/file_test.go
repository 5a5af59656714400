package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func TestFileIsFoundByFlagThenVariableThenName(t *testing.T) {
	t.Parallel()
	opts, _ := setup(t, "listen: default:1")
	byEnv := writeFile(t, opts.Dir, "env.yaml", "listen: env:1")
	byFlag := writeFile(t, opts.Dir, "flag.yaml", "listen: flag:1")

	load := func(opts LoadOptions) string {
		cfg, err := Load(opts)
		require.NoError(t, err)
		return filepath.Base(cfg.File) + " " + cfg.Listen
	}
	require.Equal(t, "reconciler.yaml default:1", load(opts))
	opts.Environ = []string{"RECONCILER_CONFIG=" + byEnv}
	require.Equal(t, "env.yaml env:1", load(opts))
	opts.Path = byFlag
	require.Equal(t, "flag.yaml flag:1", load(opts))
}

func TestNoFileIsNoProblem(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, "", "RECONCILER_DATABASE_URL=postgres://h/db")
	require.NoError(t, err)
	require.Empty(t, cfg.File)
	require.NoError(t, cfg.ValidateDatabase())
}

func TestFileThatCannotBeReadIsReportedWithEverythingElse(t *testing.T) {
	t.Parallel()
	opts, clean := setup(t, "")
	opts.Environ = []string{"RECONCILER_NOTIFY=x"}
	const other = `env RECONCILER_NOTIFY: notify: must be one of auto, on, off, not "x"`

	opts.Path = filepath.Join(opts.Dir, "gone.yaml")
	_, err := Load(opts)
	require.Equal(t, []string{other, `flag --config: cannot read the config file "gone.yaml": no such file or directory`}, problemLines(t, err, clean))

	opts.Path = opts.Dir
	_, err = Load(opts)
	require.Equal(t, []string{other, `flag --config: cannot read the config file "` + opts.Dir + `": is a directory`}, problemLines(t, err, clean))

	opts.Path = ""
	opts.Environ = append(opts.Environ, "RECONCILER_CONFIG="+filepath.Join(opts.Dir, "gone.yaml"))
	_, err = Load(opts)
	require.Equal(t, []string{`env RECONCILER_CONFIG: cannot read the config file "gone.yaml": no such file or directory`, other}, problemLines(t, err, clean))
}

func TestDefaultFileThatCannotBeReadIsReported(t *testing.T) {
	t.Parallel()
	opts, clean := setup(t, "")
	require.NoError(t, os.Mkdir(filepath.Join(opts.Dir, DefaultFile), 0o700))
	_, err := Load(opts)
	require.Equal(t, []string{`reconciler.yaml: cannot read the config file "reconciler.yaml": is a directory`}, problemLines(t, err, clean))
}

func TestParserThatPanicsIsAProblemOfTheFile(t *testing.T) {
	t.Parallel()
	root, err := withoutPanic(nil, func([]byte) (*node, error) { panic("index out of range") })
	require.Nil(t, root)
	require.EqualError(t, err, "not valid YAML")
}

func TestFileThatIsTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	comment := "#" + strings.Repeat("x", maxFileBytes-2) + "\n"
	_, err := loadText(t, comment)
	require.NoError(t, err)
	opts, clean := setup(t, comment+" ")
	_, err = Load(opts)
	require.Equal(t, []string{`reconciler.yaml: cannot read the config file "reconciler.yaml": it is larger than 1048576 bytes`}, problemLines(t, err, clean))
}

func TestEmptyFilesAreConfigs(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"\n", "# nothing\n", "---\n", "{}", "null", "log:\ntargets:\n", "listen:\n", "\uFEFFlog:\r\n  level: info\r\n"} {
		cfg, err := loadText(t, text)
		require.NoError(t, err, text)
		require.Equal(t, LogInfo, cfg.Log.Level)
		require.Empty(t, cfg.Targets)
	}
}

func TestYAMLKnowsAnchorsMergesTagsAndBlocks(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, `
x-shared: &shared
  driver: dir
  timeout: 9s
  backoff: {min: 1s}
x-more: &more {timeout: 8s, rate: 3}
targets:
  - name: !!str 7
    <<: [*shared, *more]
    timeout: 7s
    options:
      dir: &dir |
        /srv
      hex: 0x10
      octal: 0o17
      text: !!str 010
      float: !!float 1.5
      big: 18446744073709551615
      ~: null
      deep: {1: {a: }, true: *dir}
  - name: b
    <<: *shared
    options: {dir: *dir}
`)
	require.NoError(t, err)
	seven, b := cfg.Targets[0], cfg.Targets[1]
	require.Equal(t, "7", seven.Name)
	require.Equal(t, 7*time.Second, seven.Timeout)
	require.InDelta(t, 3, seven.Rate, 0)
	require.Equal(t, driver.Options{
		"dir": "/srv\n", "hex": int64(16), "octal": int64(15), "text": "010", "float": 1.5, "big": float64(1 << 63 * 2),
		"deep": map[string]any{"1": map[string]any{"a": nil}, "true": "/srv\n"},
	}, seven.Options)
	require.Equal(t, 9*time.Second, b.Timeout)
	require.Equal(t, time.Second, b.Backoff.Min)
	require.Zero(t, b.Rate)
	require.Equal(t, driver.Options{"dir": "/srv\n"}, b.Options)
}

func TestOptionsFingerprintDependsOnDriverAndOptionsOnly(t *testing.T) {
	t.Parallel()
	fingerprint := func(file string) string {
		cfg, err := loadText(t, file)
		require.NoError(t, err)
		return cfg.Targets[0].OptionsFingerprint()
	}
	base := fingerprint("targets: [{name: a, driver: dir, options: {dir: /a, n: 5, deep: {x: 1, y: [a, b]}}}]")
	require.Equal(t, "a8bcb0ba6b8b5daefeac6312dfe9465d", base, "a new fingerprint re-applies every target of every user")
	for name, same := range map[string]string{
		"OrderOfKeys":  "targets: [{driver: dir, options: {deep: {y: [a, b], x: 1}, n: 5, dir: /a}, name: a}]",
		"JSON":         `{"targets": [{"name": "a", "driver": "dir", "options": {"dir": "\/a", "n": 5.0, "deep": {"x": 1, "y": ["a", "b"]}}}]}`,
		"NullIsAbsent": "targets: [{name: a, driver: dir, options: {dir: /a, n: 5, deep: {x: 1, y: [a, b]}, gone: null}}]",
		"OtherKnobs":   "targets: [{name: b, driver: dir, timeout: 9s, options: {dir: /a, n: 5, deep: {x: 1, y: [a, b]}}}]",
	} {
		require.Equal(t, base, fingerprint(same), name)
	}
	for name, other := range map[string]string{
		"Driver":      "targets: [{name: a, driver: hook, options: {dir: /a, n: 5, deep: {x: 1, y: [a, b]}}}]",
		"Value":       "targets: [{name: a, driver: dir, options: {dir: /b, n: 5, deep: {x: 1, y: [a, b]}}}]",
		"Type":        `targets: [{name: a, driver: dir, options: {dir: /a, n: "5", deep: {x: 1, y: [a, b]}}}]`,
		"OrderOfList": "targets: [{name: a, driver: dir, options: {dir: /a, n: 5, deep: {x: 1, y: [b, a]}}}]",
		"Fewer":       "targets: [{name: a, driver: dir, options: {dir: /a, n: 5}}]",
	} {
		require.NotEqual(t, base, fingerprint(other), name)
	}
	require.Equal(t, Target{Driver: "x"}.OptionsFingerprint(), Target{Driver: "x", Options: driver.Options(nil)}.OptionsFingerprint())
}

func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		everyFieldYAML, everyFieldJSON, "", "a: [1,", "x: &x {a: *x}", "targets: [{name: a, <<: {driver: dir}}]", "? [a]\n: b",
		"log: |\n  x\n", "- !!str 5", "{\"a\":", "a: 'x", "%YAML 1.2\n---\na: 1", "targets: [{options: {a: {b: [{}]}}}]", "<<: [*a]",
	} {
		f.Add([]byte(seed), "RECONCILER_TARGETS_A_OPTIONS_X", seed)
	}
	f.Add([]byte(everyFieldYAML), "RECONCILER_TARGETS", "[{name: b}]")
	f.Add([]byte(everyFieldYAML), "RECONCILER_DATABASE_URL", "postgres://u:p@h")
	reg, _ := fakeRegistry()
	f.Fuzz(func(t *testing.T, content []byte, name, value string) {
		l := newLoader(LoadOptions{Registry: reg, Environ: []string{name + "=" + value}})
		l.merge(l.parse(content, Origin{Source: SourceFile, Name: "f.yaml"}))
		if err := l.problems.err(); err != nil {
			for _, p := range l.problems {
				require.NotEmpty(t, p.Text)
				require.True(t, p.Path != "" || p.Origin.Source != SourceDefault, "nobody knows where this is: %s", p)
				require.NotContains(t, p.String(), "\n")
			}
			return
		}
		for _, v := range l.cfg.Values() {
			require.NotEmpty(t, v.Origin)
		}
		for i, target := range l.cfg.Targets {
			require.Len(t, target.OptionsFingerprint(), 32)
			require.NoError(t, checkName(target.Name))
			requireSameAgain(t, target, i, l.cfg.Values())
		}
	})
}

// requireSameAgain loads a target from what is printed of it, but for its options.
func requireSameAgain(t *testing.T, target Target, i int, printed []Value) {
	t.Helper()
	file, err := json.Marshal(map[string]any{"targets": []any{map[string]string{"name": target.Name, "driver": target.Driver}}})
	require.NoError(t, err)
	want, environ := map[string]string{}, []string{}
	for _, k := range targetKnobs() {
		for _, v := range printed {
			if v.Key != targetPath(i, k.path) || k.path == "name" || k.path == "driver" {
				continue
			}
			want[targetPath(0, k.path)] = v.Value
			if v.Value != "unset" { // nothing can be written for what is not set
				environ = append(environ, envTargetPrefix+envPart(target.Name)+"_"+envPart(k.path)+"="+v.Value)
			}
		}
	}
	reg, _ := fakeRegistry()
	l := newLoader(LoadOptions{Registry: reg, Environ: environ})
	l.merge(l.parse(file, Origin{Source: SourceFile, Name: "again.json"}))
	l.applyEnv()
	require.NoError(t, l.problems.err(), "%s %v", file, environ)
	require.Len(t, l.cfg.Targets, 1)
	again := map[string]string{}
	for _, v := range l.cfg.Values() {
		if _, asked := want[v.Key]; asked {
			again[v.Key] = v.Value
		}
	}
	require.Equal(t, want, again)
}
