package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func streamRegistry() driver.Registry {
	registry, _ := fakeRegistry()
	return append(registry, driver.Kind{Name: "stream", Open: registry[1].Open})
}

// openText is LoadAndOpen of a config with the streams eu and us, and a target that is none.
func openText(t *testing.T, streams string, getenv func(string) string) (*Config, []string) {
	t.Helper()
	opts, clean := setup(t, "database_url: postgres://db/shop\n"+streams+`
targets:
  - {name: eu, driver: stream, options: {dir: x}}
  - {name: us, driver: stream, options: {dir: x}}
  - {name: files, driver: dir, options: {dir: x}}
`)
	opts.Registry, opts.ReadStreams = streamRegistry(), true
	cfg, drivers, err := LoadAndOpen(opts, driver.Env{Getenv: getenv})
	closeAll(drivers)
	if err == nil {
		return cfg, nil
	}
	return cfg, problemLines(t, err, clean)
}

func TestTokensAreRead(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "eu")
	first, second := strings.Repeat("a", 16), strings.Repeat("b", 64)
	require.NoError(t, os.WriteFile(file, []byte(first+"\n"+second+"\n"), 0o600))
	cfg, problems := openText(t, `streams:
  listen: 127.0.0.1:8081
  tokens:
    - {name: eu, token_file: `+file+`, targets: [eu, us], resources: [app]}
    - {name: us, token_env: US_TOKEN, targets: [us], allow: [read, report]}
`, func(name string) string { return map[string]string{"US_TOKEN": strings.Repeat("c", 20)}[name] })
	require.Empty(t, problems)
	require.Equal(t, []Token{
		{Name: "eu", File: file, Targets: []string{"eu", "us"}, Resources: []string{"app"}, Allow: []string{AllowRead}},
		{Name: "us", Env: "US_TOKEN", Targets: []string{"us"}, Allow: []string{AllowRead, AllowReport}},
	}, cfg.Streams.Tokens)
	tokens, err := cfg.Streams.Tokens[0].Read(noEnv)
	require.NoError(t, err)
	require.Equal(t, []string{first, second}, tokens)
}

func TestBadStreamsAreReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, short, empty := filepath.Join(dir, "good"), filepath.Join(dir, "short"), filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(good, []byte(strings.Repeat("a", 32)), 0o600))
	require.NoError(t, os.WriteFile(short, []byte("hunter2"), 0o600))
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	for name, test := range map[string]struct{ streams, want string }{
		"NoTokensBeyondLoopback": {"streams: {listen: 0.0.0.0:8081}", `reconciler.yaml:2:19: streams.listen: "0.0.0.0:8081" is beyond the loopback interface, where streams need tokens, tls_cert_file and tls_key_file: else everyone who can connect reads every spec`},
		"NoTLSBeyondLoopback":    {"streams: {listen: ':8081', tokens: [{name: eu, token_file: " + good + ", targets: [eu]}]}", `reconciler.yaml:2:19: streams.listen: ":8081" is beyond the loopback interface, where streams need tokens, tls_cert_file and tls_key_file: else everyone who can connect reads every spec`},
		"HalfTLS":                {"streams: {tls_cert_file: a}", `reconciler.yaml:2:26: streams: needs both tls_cert_file and tls_key_file, or neither`},
		"AddressOfListen":        {"streams: {listen: 127.0.0.1:7433}", `reconciler.yaml:2:19: streams.listen: is the address of listen or pprof_listen; give streams one of their own, or "off"`},
		"BadCertificate":         {"streams: {tls_cert_file: /nonexistent, tls_key_file: /nonexistent}", `streams.tls_cert_file: cannot be used: open /nonexistent: no such file or directory`},
		"NoList":                 {"streams: {tokens: {name: eu}}", `reconciler.yaml:2:19: streams.tokens: must be a list with one mapping for each token (- name: ...), not a mapping`},
		"NoMapping":              {"streams: {tokens: [eu]}", `reconciler.yaml:2:20: streams.tokens[0]: must be a mapping with the keys name, token_file and targets, not a string`},
		"UnknownKey":             {"streams: {tokens: [{name: eu, token_fiel: " + good + ", token_env: A, targets: [eu]}]}", `reconciler.yaml:2:31: streams.tokens[0].token_fiel: unknown key; did you mean "token_file"?` + "\n" + `reconciler.yaml:2:1: streams.tokens[0].token_env: the variable A is not set`},
		"NoName":                 {"streams: {tokens: [{token_file: " + good + ", targets: [eu]}]}", `reconciler.yaml:2:20: streams.tokens[0].name: is missing: give every token a name`},
		"NoTargets":              {"streams: {tokens: [{name: eu, token_file: " + good + "}]}", `reconciler.yaml:2:20: streams.tokens[0].targets: is missing: name the streams that the token is for`},
		"TargetsNoList":          {"streams: {tokens: [{name: eu, token_file: " + good + ", targets: eu}]}", `streams.tokens[0].targets: must be a list such as [eu, us], not a string`},
		"UnknownTarget":          {"streams: {tokens: [{name: eu, token_file: " + good + ", targets: [ue]}]}", `streams.tokens[0].targets: there is no target "ue" in this config`},
		"NoStream":               {"streams: {tokens: [{name: eu, token_file: " + good + ", targets: [files]}]}", `streams.tokens[0].targets: target "files" has the driver dir, and tokens are for the driver stream only`},
		"AllowUnknown":           {"streams: {tokens: [{name: eu, token_file: " + good + ", targets: [eu], allow: [write]}]}", `streams.tokens[0].allow: must be a list of read and report, and "write" is neither`},
		"AllowNothing":           {"streams: {tokens: [{name: eu, token_file: " + good + ", targets: [eu], allow: []}]}", `streams.tokens[0].allow: is empty: it is a list of read and report`},
		"TwoReporters":           {"streams: {tokens: [{name: eu, token_file: " + good + ", targets: [eu, us], allow: [report]}, {name: us, token_env: HOME, targets: [us], allow: [read, report]}]}", `streams.tokens[1].targets: token "eu" may report for target "us" already, and only one token for each target may`},
		"FileAndVariable":        {"streams: {tokens: [{name: eu, token_file: " + good + ", token_env: A, targets: [eu]}]}", `streams.tokens[0].token_file: give either token_file or token_env`},
		"NoSuchFile":             {"streams: {tokens: [{name: eu, token_file: /nonexistent/eu, targets: [eu]}]}", `streams.tokens[0].token_file: cannot be read: open /nonexistent/eu: no such file or directory`},
		"EmptyFile":              {"streams: {tokens: [{name: eu, token_file: " + empty + ", targets: [eu]}]}", `streams.tokens[0].token_file: ` + empty + ` holds no token`},
		"ShortToken":             {"streams: {tokens: [{name: eu, token_file: " + short + ", targets: [eu]}]}", "streams.tokens[0].token_file: a token must have 16 to 4096 characters, as `openssl rand -hex 32` prints them, and not 7"},
		"EqualNames":             {"streams: {tokens: [{name: eu, token_file: " + good + ", targets: [eu]}, {name: eu, token_env: HOME, targets: [eu]}]}", `streams.tokens[1].name: "eu" is the name of another token`},
		"EqualTokens":            {"streams: {tokens: [{name: eu, token_file: " + good + ", targets: [eu]}, {name: us, token_file: " + good + ", targets: [us]}]}", `streams.tokens[1].token_file: holds a token that streams.tokens[0] holds, too: a token must mean one entry`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, problems := openText(t, test.streams, func(name string) string {
				return map[string]string{"HOME": strings.Repeat("h", 16)}[name]
			})
			for i, want := range strings.Split(test.want, "\n") {
				require.Greater(t, len(problems), i, "%q", problems)
				if strings.HasPrefix(want, "reconciler.yaml") && !strings.HasPrefix(want, "reconciler.yaml:2:1:") {
					require.Equal(t, want, problems[i])
				} else {
					require.Contains(t, problems[i], strings.TrimPrefix(want, "reconciler.yaml:2:1: "))
				}
			}
			require.Len(t, problems, 1+strings.Count(test.want, "\n"))
			require.NotContains(t, strings.Join(problems, "\n"), "hunter2")
		})
	}
}
