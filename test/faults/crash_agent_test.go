package faults_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// agentPoints are the crash points that only agents come to.
var agentPoints = []crash.Name{crash.AgentBeforeCall, crash.AgentAfterCall}

// agentDeath is where an agent dies: at a crash point, at a step of its agentWire, or while it writes its state.
type agentDeath struct {
	name  string
	point crash.Name
	step  string // regular expression
	visit int    // of the point, or which write
	after string // what happens to the rows after the first ones are applied; "": it dies before that
	mute  bool   // the server takes no report before
}

// agentObjects is how many objects there are at first, each with one call.
const agentObjects = 8

const (
	agentChange = `UPDATE apps SET version = 2 WHERE id = '1@'`
	agentDelete = `DELETE FROM apps WHERE id = '2@'`
)

var agentDeaths = []agentDeath{
	{"BeforeACall", crash.AgentBeforeCall, "", 3, "", false},
	{"BeforeACallForAChange", crash.AgentBeforeCall, "", agentObjects + 1, agentChange, false},
	{"BeforeACallForADelete", crash.AgentBeforeCall, "", agentObjects + 1, agentDelete, false},
	{"AfterACall", crash.AgentAfterCall, "", 3, "", false},
	{"AfterACallForAChange", crash.AgentAfterCall, "", agentObjects + 1, agentChange, false},
	{"AfterACallForADelete", crash.AgentAfterCall, "", agentObjects + 1, agentDelete, false},
	{"InsideASnapshot", "", `^frame .*"upsert".*"key":"4@`, 0, "", false},
	{"BeforeTheEndOfASnapshot", "", `^frame .*"end_of_snapshot"`, 0, "", false},
	{"BeforeAReport", "", `^report .*"applied"`, 0, "", false},
	{"BeforeAReportOfADelete", "", `^report .*"key":"2@[^"]*"[^\n]*"absent"`, 0, agentDelete, false},
	{"BeforeTheAnswerToAReport", "", `^reported .*"applied"`, 0, "", false},
	{"BeforeTheAnswerToAReportOfADelete", "", `^reported .*"key":"2@[^"]*"[^\n]*"absent"`, 0, agentDelete, false},
	{"BeforeAnyReportOfResultsThatItRemembers", crash.AgentBeforeCall, "", agentObjects + 1, agentChange, true},
	{"WhileTheStateIsMade", "", "", 1, "", false},
	{"WhileTheStateIsWritten", "", "", 3, "", false},
	{"WhileTheStateIsWrittenForAChange", "", "", 1, agentChange, false},
	{"WhileTheStateIsWrittenForADelete", "", "", 2, agentDelete, false},
}

// Wherever an agent dies, and whatever happens to the rows while it is away: with the next one, the far side becomes equal to the rows, and
// the ledger has what was confirmed, and nothing else. I1, I3, I7.
func TestAgentDiesAtAnyStep(t *testing.T) {
	t.Parallel()
	targets := make([]string, len(agentDeaths))
	for i := range agentDeaths {
		targets[i] = fmt.Sprintf("edge%d", i)
	}
	w, server := newAgentServer(t, targets...)
	for i, d := range agentDeaths {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			a := newAgentWorld(t, w, server, targets[i], "2s")
			a.dies(d)
			a.recovers()
		})
	}
}

// I1, I3: a call of an agent that was killed takes effect late, and the row has changed. The next agent makes no call before.
func TestLateCallOfAKilledAgentIsMadeGood(t *testing.T) {
	t.Parallel()
	w, server := newAgentServer(t, "edge")
	a := newAgentWorld(t, w, server, "edge", "5s")
	a.change(`INSERT INTO apps (id, region) VALUES ('1@', $1), ('2@', $1)`)
	p := a.crashWorld.start("", 0, "agent")
	a.applied()
	late := a.endpoint.delay("app/1@edge")
	a.change(`UPDATE apps SET version = 2 WHERE id = '1@'`)
	<-late.came
	p.signal(syscall.SIGKILL)
	p.ended()
	a.change(`UPDATE apps SET version = 3 WHERE id = '1@'; UPDATE apps SET version = 2 WHERE id = '2@'`)
	a.crashWorld.start("", 0, "agent")
	pass(time.Second, t.Context().Done()) // within the time of the call, and long after an agent that does not wait would have called
	a.endpoint.strike(late)
	a.applied()
	have, wrong := a.endpoint.has()
	want := map[string]string{"app/1@edge": `{"id": "1@edge", "version": 3}`, "app/2@edge": `{"id": "2@edge", "version": 2}`}
	require.Equal(t, want, have, "VIOLATION: a late call")
	require.Empty(t, wrong, "VIOLATION: calls")
}

// newAgentServer runs a server with targets that agents call.
func newAgentServer(t *testing.T, targets ...string) (w *crashWorld, url string) {
	t.Helper()
	w = newCrashWorld(t, pgtest.New(t))
	w.exec(`CREATE TABLE apps (id text PRIMARY KEY, region text, version bigint NOT NULL DEFAULT 1);
SELECT reconciler.track('app', 'apps', '{id}', 'region', ignore => '{region}')`)
	w.follow(targets...)
	url = w.start("", 0, "run").streams()
	w.eventually("the targets are there", func() error {
		if n := w.text(`SELECT count(*) FROM reconciler.targets WHERE name LIKE 'edge%'`); n != fmt.Sprint(len(targets)) {
			return fmt.Errorf("there are %s", n)
		}
		return nil
	})
	return w, url
}

// agentWorld is a target of a crashWorld with an endpoint of its own, which an agent calls. Its directory is the agent's.
type agentWorld struct {
	clientWorld

	wire *agentWire
}

func newAgentWorld(t *testing.T, w *crashWorld, server, target, timeout string) *agentWorld {
	t.Helper()
	a := &agentWorld{clientWorld: clientWorld{crashWorld: crashWorld{t: t, db: w.db, dir: t.TempDir(), endpoint: newCrashEndpoint(t)}}}
	a.client.Target = target
	a.wire = &agentWire{server: server}
	wire := httptest.NewServer(a.wire)
	t.Cleanup(wire.Close)
	text, err := json.Marshal(crashObject{
		"server": wire.URL, "state_dir": a.path("state"), "listen": "127.0.0.1:0", "log": crashObject{"level": "debug", "format": "json"},
		"targets": []crashObject{{"name": target, "driver": "webhook", "timeout": timeout, "options": crashObject{"url": a.endpoint.url}}},
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(a.path("reconciler.yaml"), text, 0o600))
	require.NoError(t, os.Mkdir(a.path("state"), 0o700))
	return a
}

// dies runs an agent until it has died.
func (a *agentWorld) dies(d agentDeath) {
	a.t.Helper()
	a.change(fmt.Sprintf(`INSERT INTO apps (id, region) SELECT i || '@', $1 FROM generate_series(1, %d) AS i`, agentObjects))
	first := d.after == ""
	if first {
		a.await(d)
	}
	a.wire.lose(d.mute)
	p := a.crashWorld.start(d.point, d.visit, "agent")
	a.wire.of(p)
	if !first {
		a.called()
		if !d.mute {
			a.applied()
		}
		a.await(d)
		a.change(d.after)
	}
	if d.point != "" {
		a.died(p, d.point, d.visit)
		return
	}
	end := p.ended()
	require.True(a.t, end.Signaled() && end.Signal() == syscall.SIGKILL, "it ended in another way: %v", end)
}

// called waits until the endpoint has the first objects.
func (a *agentWorld) called() {
	a.t.Helper()
	a.eventually("the first calls", func() error {
		if have, _ := a.endpoint.has(); len(have) != agentObjects {
			return fmt.Errorf("it has %d objects", len(have))
		}
		return nil
	})
}

// await has the wire kill the agent at its step, or when it writes its state.
func (a *agentWorld) await(d agentDeath) {
	a.t.Helper()
	switch {
	case d.step != "":
		a.wire.await(regexp.MustCompile("(?s)" + d.step))
	case d.point == "":
		a.watchState(d.visit)
	}
}

// recovers changes rows while no agent runs, starts one that does not die, and looks at everything.
func (a *agentWorld) recovers() {
	a.t.Helper()
	a.change(`UPDATE apps SET version = version + 1 WHERE id = '3@'; DELETE FROM apps WHERE id IN ('4@', '5@')`)
	a.change(`INSERT INTO apps (id, region, version) VALUES ('5@', $1, 7), ('9@', $1, 1)`)
	a.wire.lose(false)
	p := a.crashWorld.start("", 0, "agent")
	a.applied()
	want := map[string]string{}
	for key, spec := range a.want() {
		want["app/"+key] = spec
	}
	have, wrong := a.endpoint.has()
	require.Equal(a.t, want, have, "VIOLATION: wait() has returned, and the far side differs from the rows")
	require.Empty(a.t, wrong, "VIOLATION: calls")
	a.ledgerIsTrue()
	p.stop()
}

// watchState kills the agent when a write to the file of its target is seen.
func (a *agentWorld) watchState(visit int) {
	a.t.Helper()
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	require.NoError(a.t, err)
	_, err = syscall.InotifyAddWatch(fd, a.path("state"), syscall.IN_MODIFY)
	require.NoError(a.t, err)
	watch, ended := os.NewFile(uintptr(fd), "inotify"), make(chan struct{})
	a.t.Cleanup(func() {
		_ = watch.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		name, events := []byte(a.client.Target+".db\x00"), make([]byte, syscall.SizeofInotifyEvent+syscall.NAME_MAX+1)
		for writes := 0; writes < visit; {
			n, err := watch.Read(events)
			if err != nil {
				return
			}
			writes += bytes.Count(events[:n], name)
		}
		a.wire.kill()
	}()
}
