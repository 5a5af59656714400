package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// agentRun is an agent that runs.
type agentRun struct {
	address string
	stop    func() result
}

// startAgent runs an agent with the config in the place, until the test ends or stop.
func (p *place) startAgent(t *testing.T, args ...string) agentRun {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	var stderr output
	a := &app{stdout: &stderr, stderr: &stderr, environ: p.environ, dir: p.dir, registry: registry()}
	code := make(chan int, 1)
	go func() { code <- a.execute(ctx, append([]string{"agent", "--listen", "127.0.0.1:0"}, args...)) }()
	ended := false
	r := agentRun{stop: func() result {
		if ended {
			return result{}
		}
		ended = true
		cancel(&signalError{syscall.SIGTERM})
		return result{<-code, "", p.hide(stderr.String())}
	}}
	t.Cleanup(func() { r.stop() })
	stderr.await(t, "msg=started")
	r.address = regexp.MustCompile(`key=listen address=(\S+)`).FindStringSubmatch(stderr.String())[1]
	return r
}

// agentPlace is a place with a server and the config of an agent that follows it into the directory far.
func agentPlace(t *testing.T) (*place, *streamtest.Server) {
	t.Helper()
	p, stream := newPlace(t), streamtest.NewServer("eu")
	server := httptest.NewServer(stream)
	t.Cleanup(server.Close)
	require.NoError(t, os.Mkdir(filepath.Join(p.dir, "far"), 0o700))
	p.write(t, "agent.yaml", "server: "+server.URL+"\nname: host-7\nstate_dir: "+p.dir+"/state\n"+
		"targets: [{name: eu, driver: file, options: {dir: "+p.dir+"/far}, guard: {max_deletes: 1}}]\n")
	return p, stream
}

const patience, pause = pgtest.Patience, 10 * time.Millisecond

var clock = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`)

func TestAgentCanBeAskedAndApproves(t *testing.T) {
	t.Parallel()
	p, stream := agentPlace(t)
	for _, key := range []string{"a", "b", "c"} {
		stream.Set("app", key, map[string]int{"n": 1})
	}
	r := p.startAgent(t)
	for _, key := range []string{"a", "b", "c"} {
		_, err := stream.WaitObserved(t.Context(), "app", key, client.StateApplied)
		require.NoError(t, err)
	}
	status := func(args ...string) result {
		got := p.run(t, append([]string{"agent", "status", "--address", r.address}, args...)...)
		got.stdout = clock.ReplaceAllString(got.stdout, "2026-01-02 03:04:05Z")
		return got
	}
	require.Eventually(t, func() bool { return strings.Contains(status().stdout, "2026-01-02") }, patience, pause, "the first sync")
	require.Equal(t, result{stdout: "" +
		"TARGET  STATE  DRIVER  OBJECTS  PENDING  FAILING  HELD  REVISION  LAST SYNC\n" +
		"eu      ok     file    3        0        0        0     3         2026-01-02 03:04:05Z\n"}, status())
	require.Equal(t, result{stdout: "the agent's guard holds nothing of eu\n"}, p.run(t, "agent", "approve", "eu", "--address", r.address))

	stream.Lose("app", "a")
	stream.Lose("app", "b")
	stream.Reset("restored")
	_, err := stream.WaitObserved(t.Context(), "app", "b", client.StateProgressing)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return status().code == 1 }, patience, pause)
	require.Contains(t, status().stdout, "eu: `reconciler agent approve eu` lets the held deletes pass\n")
	require.Contains(t, status("-o", "json").stdout, `"state": "held"`)
	require.FileExists(t, p.dir+"/far/app/a.json")
	require.Equal(t, result{stdout: "2 deletes of eu approved\n"}, p.run(t, "agent", "approve", "eu", "--address", r.address))
	_, err = stream.WaitObserved(t.Context(), "app", "b", client.StateAbsent)
	require.NoError(t, err)
	require.NoFileExists(t, p.dir+"/far/app/b.json")

	require.Equal(t, result{code: 1, stderr: "reconciler: no target is named \"us\" here; there are eu\n"},
		p.run(t, "agent", "approve", "us", "--address", r.address))
	require.Zero(t, r.stop().code)
	gone := status()
	require.Equal(t, 3, gone.code)
	require.Contains(t, gone.stderr, "reconciler: the agent at "+r.address+" does not answer: dial tcp "+r.address+": connect: connection refused\n")
}

func TestAgentEndsWhenTheServerHasBecomeAnother(t *testing.T) {
	t.Parallel()
	p, stream := agentPlace(t)
	stream.Set("app", "a", map[string]int{"n": 1})
	r := p.startAgent(t)
	_, err := stream.WaitObserved(t.Context(), "app", "a", client.StateApplied)
	require.NoError(t, err)
	require.Zero(t, r.stop().code)
	stream.Become("other")
	ended := p.run(t, "agent", "--listen", "off")
	require.Equal(t, 1, ended.code)
	require.Contains(t, ended.stderr, "reconciler: target eu: store /etc/reconciler/state/eu.db: another installation: ")
	require.Contains(t, ended.stderr, "is kept; to follow this stream from now on, start the agent once with --adopt\n")
	stream.Set("app", "b", map[string]int{"n": 2})
	p.startAgent(t, "--adopt")
	_, err = stream.WaitObserved(t.Context(), "app", "b", client.StateApplied)
	require.NoError(t, err)
	require.FileExists(t, p.dir+"/far/app/b.json")
}

// Two targets of one directory would delete each other's files, and an agent must not take over what the daemon has.
func TestAgentRefusesADirectoryOfAnother(t *testing.T) {
	t.Parallel()
	p, stream := agentPlace(t)
	p.write(t, "twice.yaml", "server: http://127.0.0.1:1\nstate_dir: "+p.dir+"/state\ntargets:\n"+
		"- {name: eu, driver: file, options: {dir: "+p.dir+"/far}}\n- {name: us, driver: file, options: {dir: "+p.dir+"/far}}\n")
	r := p.run(t, "agent", "-c", p.dir+"/twice.yaml")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.stderr, "is the directory of target \"eu\" too: they would delete each other's files; give each its own\n")

	p.write(t, "far/.reconciler-owner", `{"target":"eu","database":"app","system":"7400","id":"7d4f"}`)
	stream.Set("app", "a", map[string]int{"n": 1})
	running := p.startAgent(t)
	require.Eventually(t, func() bool {
		return strings.Contains(p.run(t, "agent", "status", "--address", running.address).stdout, "belongs to target ")
	}, patience, pause)
	require.NoFileExists(t, p.dir+"/far/app/a.json")
}

func TestAgentRefusesBadInput(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(t, "agent.yaml", "server: http://reconciler.example.org\nstate_dir: "+p.dir+"/state\ntargets: [{name: eu, driver: stream}, {name: us, driver: fiel}]\n")
	require.Equal(t, result{code: 2, stderr: "reconciler: reconciler agent approve takes TARGET, and got 0 arguments\nhint: see `reconciler agent approve --help`\n"},
		p.run(t, "agent", "approve"))
	r := p.run(t, "agent", "--log-level", "loud")
	require.Equal(t, result{code: 2, stderr: "reconciler: invalid configuration, 4 problems:\n" +
		"  /etc/reconciler/agent.yaml:1:9: server: must begin with https://: beyond the loopback interface, http:// would show the token and every spec to the network\n" +
		"  /etc/reconciler/agent.yaml:3:30: targets[0].driver: an agent follows a stream, and does not make one: choose one of discard, exec, file, kubernetes, postgres, webhook\n" +
		"  /etc/reconciler/agent.yaml:3:58: targets[1].driver: unknown driver \"fiel\"; did you mean \"file\"? The drivers are discard, exec, file, kubernetes, postgres, webhook\n" +
		"  flag --log-level: log.level: must be one of debug, info, warn, error, not \"loud\"\n"}, r)
	require.Equal(t, result{code: 2, stderr: "reconciler: --address must be host:port such as 127.0.0.1:7434, not \"here\"\n"},
		p.run(t, "agent", "status", "--address", "here"))
	require.Equal(t, result{code: 2, stderr: "reconciler: reconciler agent has no command \"statsu\"\nhint: did you mean status?\n"}, p.run(t, "agent", "statsu"))
}

func TestAgentReadsItsTokenFromAVariable(t *testing.T) {
	t.Parallel()
	const token = "4c0ffee4c0ffee42"
	p, stream := newPlace(t), streamtest.NewServer("eu")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		stream.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p.environ = []string{"EDGE_TOKEN=" + token}
	p.write(t, "agent.yaml", "server: "+server.URL+"\ntoken_env: EDGE_TOKEN\nname: host-7\nstate_dir: "+p.dir+"/state\n"+
		"targets: [{name: eu, driver: file, options: {dir: "+p.dir+"/far}}]\n")
	stream.Set("app", "a", map[string]int{"n": 1})
	r := p.startAgent(t, "--log-level", "debug")
	_, err := stream.WaitObserved(t.Context(), "app", "a", client.StateApplied)
	require.NoError(t, err)
	require.NotContains(t, r.stop().stderr, token)
	printed := p.run(t, "agent", "config", "print")
	require.Regexp(t, `token_env +EDGE_TOKEN +/etc/reconciler/agent.yaml:2:12`, printed.stdout)
	require.NotContains(t, printed.stdout, token)
}

func TestAgentNeedsItsPort(t *testing.T) {
	t.Parallel()
	p, _ := agentPlace(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	r := p.run(t, "agent", "--listen", taken.Addr().String(), "--log-level", "error")
	require.Equal(t, result{code: 1, stderr: "reconciler: listen: cannot listen on " + taken.Addr().String() +
		": address already in use (is another process running there? \"off\" disables it)\n"}, r)
}

func TestAgentConfigPrintShowsWhereEachValueComesFrom(t *testing.T) {
	t.Parallel()
	p, _ := agentPlace(t)
	p.environ = []string{"RECONCILER_TARGETS_EU_TIMEOUT=9s"}
	r := p.run(t, "agent", "config", "print", "--listen", "127.0.0.1:9")
	require.Zero(t, r.code, r.stderr)
	require.NotContains(t, r.stdout, "database_url")
	require.Regexp(t, `listen +127.0.0.1:9 +flag --listen`, r.stdout)
	require.Regexp(t, `name +host-7 +/etc/reconciler/agent.yaml:2:7`, r.stdout)
	require.Regexp(t, `targets\[0\].timeout +9s +env RECONCILER_TARGETS_EU_TIMEOUT`, r.stdout)
}
