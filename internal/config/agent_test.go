package config

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// agentText is a config of an agent with these further lines.
func agentText(lines string) string {
	return "server: https://r.example.org\nname: host-7\nstate_dir: /etc/state\n" + lines
}

// loadAgent loads agent.yaml as an agent does at start. /etc in the text stands for its directory.
func loadAgent(t *testing.T, text string, environ ...string) (*Config, error) {
	t.Helper()
	opts, _ := setup(t, "")
	opts.Agent, opts.Environ = true, environ
	writeFile(t, opts.Dir, AgentFile, strings.ReplaceAll(text, "/etc", opts.Dir))
	writeFile(t, opts.Dir, "empty", "")
	writeFile(t, opts.Dir, "token", "of the file")
	cfg, drivers, err := LoadAndOpen(opts, driver.Env{Getenv: func(name string) string { return map[string]string{"TOKEN": "of the variable"}[name] }})
	closeAll(drivers)
	if bad, ok := errors.AsType[*Error](err); ok {
		for i := range bad.Problems {
			p := &bad.Problems[i]
			p.Origin.Name, p.Text = strings.ReplaceAll(p.Origin.Name, opts.Dir, "/etc"), strings.ReplaceAll(p.Text, opts.Dir, "/etc")
		}
	}
	return cfg, err
}

func TestAgentConfigHasDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := loadAgent(t, "server: http://localhost:8081\nstate_dir: /etc/state\ntargets: [{name: eu, driver: dir, options: {dir: x}}]")
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, Agent{Server: "http://localhost:8081", Name: host, StateDir: cfg.Agent.StateDir}, cfg.Agent)
	require.Equal(t, "127.0.0.1:7434", cfg.Listen)
	require.Equal(t, syncIntervalDefault, cfg.Targets[0].SyncInterval)
	info, err := os.Stat(cfg.Agent.StateDir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	left, err := os.ReadDir(cfg.Agent.StateDir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestAgentConfigTakesFlagsBeforeVariablesBeforeTheFile(t *testing.T) {
	t.Parallel()
	opts, _ := setup(t, "")
	opts.Agent = true
	opts.Environ = []string{"RECONCILER_NAME=env", "RECONCILER_LISTEN=127.0.0.1:1", "RECONCILER_TARGETS_EU_TIMEOUT=9s"}
	opts.Overrides = map[string]string{"listen": "127.0.0.1:2"}
	writeFile(t, opts.Dir, AgentFile, agentText("listen: 127.0.0.1:3\ntargets: [{name: eu, driver: dir, timeout: 3s}]"))
	cfg, err := Load(opts)
	require.NoError(t, err)
	origins := map[string]string{}
	for _, v := range cfg.Values() {
		origins[v.Key] = v.Value + " from " + v.Origin
	}
	require.Equal(t, "env from env RECONCILER_NAME", origins["name"])
	require.Equal(t, "127.0.0.1:2 from flag --listen", origins["listen"])
	require.Equal(t, "9s from env RECONCILER_TARGETS_EU_TIMEOUT", origins["targets[0].timeout"])
	require.NotContains(t, origins, "database_url")
}

// A host may run both.
func TestVariablesOfTheOtherProgramAreIgnored(t *testing.T) {
	t.Parallel()
	opts, _ := setup(t, "")
	writeFile(t, opts.Dir, AgentFile, agentText("targets: [{name: eu, driver: dir, options: {dir: x}}]"))
	for agent, others := range map[bool][]string{
		true:  {"RECONCILER_DATABASE_URL=postgres://h/d", "RECONCILER_STREAMS_LISTEN=127.0.0.1:1"},
		false: {"RECONCILER_SERVER=https://r", "RECONCILER_STATE_DIR=/etc/state"},
	} {
		opts.Agent, opts.Environ = agent, others
		_, err := Load(opts)
		require.NoError(t, err)
		opts.Environ = append(others, "RECONCILER_SERVERS=x")
		_, err = Load(opts)
		require.ErrorContains(t, err, "env RECONCILER_SERVERS: unknown variable")
	}
}

func TestAgentConfigReportsBadInputWithPlaceAndRemedy(t *testing.T) {
	t.Parallel()
	const eu = "targets: [{name: eu, driver: dir, options: {dir: x}}]"
	for name, tc := range map[string]struct{ text, want string }{
		"NoServer":       {"name: a\nstate_dir: /etc/state\n" + eu, "server: is missing: give the URL of a process with streams.listen, such as https://reconciler.example.org:8443"},
		"NoStateDir":     {"server: https://r\nname: a\n" + eu, "state_dir: is missing: name a directory that survives restarts, such as /var/lib/reconciler-agent"},
		"NoTargets":      {agentText(""), "targets: is empty: configure at least one target"},
		"NoURL":          {"server: reconciler\nname: a\nstate_dir: /etc/state\n" + eu, "/etc/agent.yaml:1:9: server: must be a URL such as https://reconciler.example.org:8443"},
		"UserInURL":      {"server: https://a:secret@r\nname: a\nstate_dir: /etc/state\n" + eu, "/etc/agent.yaml:1:9: server: must be a URL without user, query and fragment: the token stands in token_file or token_env"},
		"PlainHTTP":      {"server: http://r.example.org\nname: a\nstate_dir: /etc/state\n" + eu, "/etc/agent.yaml:1:9: server: must begin with https://: beyond the loopback interface, http:// would show the token and every spec to the network"},
		"UnknownKey":     {agentText("statedir: x\n" + eu), `/etc/agent.yaml:4:1: statedir: unknown key; did you mean "state_dir"?`},
		"KeyOfTheDaemon": {agentText("database_url: x\n" + eu), "/etc/agent.yaml:4:1: database_url: unknown key; known here: listen, listen_names, log, name, server, shutdown_timeout, state_dir, targets, tls_ca_file, token_env, token_file"},
		"SyncMode":       {agentText("targets: [{name: eu, driver: dir, options: {dir: x}, sync_mode: report}]"), "/etc/agent.yaml:4:54: targets[0].sync_mode: unknown key; known here: backoff, concurrency, driver, guard, name, options, rate, sync_interval, timeout"},
		"UnknownDriver":  {agentText("targets: [{name: eu, driver: dri}]"), `/etc/agent.yaml:4:30: targets[0].driver: unknown driver "dri"; did you mean "dir"? The drivers are dir, hook`},
		"Stream":         {agentText("targets: [{name: eu, driver: stream}]"), "/etc/agent.yaml:4:30: targets[0].driver: an agent follows a stream, and does not make one: choose one of dir, hook"},
		"NameTooLong":    {"server: https://r\nname: " + strings.Repeat("a", 129) + "\nstate_dir: /etc/state\n" + eu, "/etc/agent.yaml:2:7: name: must have 1 to 128 bytes and no control characters"},
		"ControlInName":  {"server: https://r\nname: \"a\\nb\"\nstate_dir: /etc/state\n" + eu, "/etc/agent.yaml:2:7: name: must have 1 to 128 bytes and no control characters"},
		"TargetTwice":    {agentText("targets: [{name: eu, driver: dir, options: {dir: x}}, {name: eu, driver: dir, options: {dir: y}}]"), `/etc/agent.yaml:4:62: targets[1].name: "eu" is already the name of targets[0] (/etc/agent.yaml:4:18)`},
		"NoToken":        {agentText("token_file: /etc/none\n" + eu), "/etc/agent.yaml:4:13: token_file: cannot be read: open /etc/none: no such file or directory"},
		"EmptyToken":     {agentText("token_file: /etc/empty\n" + eu), "/etc/agent.yaml:4:13: token_file: /etc/empty holds no token"},
		"NoVariable":     {agentText("token_env: UNSET\n" + eu), "/etc/agent.yaml:4:12: token_env: the variable UNSET is not set"},
		"FileAndEnv":     {agentText("token_file: /etc/token\ntoken_env: TOKEN\n" + eu), "/etc/agent.yaml:5:12: token_env: give either token_file or token_env"},
		"NoCertificate":  {agentText("tls_ca_file: /etc/empty\n" + eu), "/etc/agent.yaml:4:14: tls_ca_file: /etc/empty holds no certificate in PEM"},
		"StateIsAFile":   {"server: https://r\nname: a\nstate_dir: /etc/empty\n" + eu, "/etc/agent.yaml:3:12: state_dir: /etc/empty cannot be written to: not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := loadAgent(t, tc.text)
			require.EqualError(t, err, "invalid configuration: "+tc.want)
		})
	}
}

func TestAgentConfigReportsAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := loadAgent(t, "server: x\ntoken_file: /etc/none\nlisten: 80\ntargets: [{name: eu, driver: dir, rate: -1}, {driver: stream}]")
	var bad *Error
	require.ErrorAs(t, err, &bad)
	var paths []string
	for _, p := range bad.Problems {
		paths = append(paths, p.Path)
	}
	require.Equal(t, []string{
		"server", "token_file", "listen", "targets[0].options.dir", "targets[0].rate", "targets[1].name", "targets[1].driver", "state_dir",
	}, paths)
}

func TestDaemonDoesNotKnowTheKeysOfAnAgent(t *testing.T) {
	t.Parallel()
	_, err := loadText(t, "state_dir: x")
	require.ErrorContains(t, err, "state_dir: unknown key")
}
