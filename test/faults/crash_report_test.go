package faults_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/stretchr/testify/require"
)

// followedObjects is how many objects the stream has.
const followedObjects = 3

// crashFollowed adds a target with objects.
func crashFollowed(w *crashWorld) {
	w.t.Helper()
	w.follow("edge")
	w.exec(fmt.Sprintf(`INSERT INTO apps (id, region) SELECT i, 'edge' FROM generate_series(20001, %d) AS i`, 20_000+followedObjects))
}

// follow adds targets to the config whose objects are followed over HTTP, and are applied when a client has reported them.
func (w *crashWorld) follow(targets ...string) {
	w.t.Helper()
	text, err := os.ReadFile(w.path("reconciler.yaml"))
	require.NoError(w.t, err)
	var config crashObject
	require.NoError(w.t, json.Unmarshal(text, &config))
	config["streams"] = crashObject{"listen": "127.0.0.1:0"}
	for _, name := range targets {
		config["targets"] = append(config["targets"].([]any),
			crashObject{"name": name, "driver": "stream", "options": crashObject{"ack": true}, "guard": crashObject{"max_fraction": 1}})
	}
	text, err = json.Marshal(config)
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(w.path("reconciler.yaml"), text, 0o600))
}

// crashReported reports everything to a process that dies of it. The client has no answer.
func crashReported(w *crashWorld, p *crashProcess) {
	w.fill()
	_, err := http.Post(p.observations(), "", w.inventory(1)) //nolint:bodyclose,noctx // there is none
	require.Error(w.t, err)
}

// reportedOnce sends the report again, to another process.
func reportedOnce(w *crashWorld) {
	w.t.Helper()
	p := w.start("", 0, "run").synced()
	p.observations()
	p.report(w.inventory(1), followedObjects)
	require.Equal(w.t, fmt.Sprintf("%d applied of %[1]d", followedObjects), w.text(`SELECT count(*) FILTER (WHERE o.state = 'applied' AND o.version = p.version) || ' applied of ' || count(*)
		FROM reconciler.observations o JOIN reconciler.published p ON p.target_id = o.target_id AND p.key = o.key`), "VIOLATION: a report was lost or counted twice")
	require.Equal(w.t, "client 1 1", w.text(`SELECT session || ' ' || session_id || ' ' || seq FROM reconciler.reports`))
	w.wait()
	w.exec(`DELETE FROM apps WHERE region = 'edge'`)
	w.eventually("the deletes are published", func() error {
		if n := w.text(`SELECT count(*) FROM reconciler.published WHERE spec IS NULL`); n != fmt.Sprint(followedObjects) {
			return errors.New(n + " objects are deleted")
		}
		return nil
	})
	p.report(w.inventory(2), 0)
	w.wait()
	p.stop()
}

// report sends a report, all of which is accepted.
func (p *crashProcess) report(body io.Reader, accepted int) {
	p.w.t.Helper()
	response, err := http.Post(p.address(), "", body) //nolint:noctx // it ends with the test
	require.NoError(p.w.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(p.w.t, err)
	require.Equal(p.w.t, fmt.Sprintf(`{"accepted":%d,"ignored":0}`, accepted)+"\n", string(text))
}

// observations waits until the stream is published, and returns where a client reports on it.
func (p *crashProcess) observations() string {
	p.w.t.Helper()
	p.w.eventually("the stream is published", func() error {
		if n := p.w.text(`SELECT count(*) FROM reconciler.published WHERE spec IS NOT NULL`); n != fmt.Sprint(followedObjects) {
			return errors.New(n + " objects are published")
		}
		return nil
	})
	return p.address()
}

// address is where a client reports.
func (p *crashProcess) address() string { return p.streams() + "/v1/targets/edge/observations" }

// streams waits until the process serves streams, and returns where.
func (p *crashProcess) streams() (server string) {
	p.w.t.Helper()
	p.w.eventually("streams are served", func() error {
		text, err := os.ReadFile(p.log)
		for line := range bytes.Lines(text) {
			var said struct{ Key, Address string }
			if json.Unmarshal(line, &said) == nil && said.Key == "streams.listen" {
				server = "http://" + said.Address
				return nil
			}
		}
		return cmp.Or(err, errors.New("not yet"))
	})
	return server
}

// inventory is a complete report of what the stream has.
func (w *crashWorld) inventory(seq int) io.Reader {
	w.t.Helper()
	lines := w.text(fmt.Sprintf(`SELECT format('{"session":"client","seq":%d,"complete":true,"version":%%s}', max(version)) || E'\n' ||
		coalesce(string_agg(format('{"resource":"app","key":"%%s","version":%%s,"state":"applied"}', key, version), E'\n') FILTER (WHERE spec IS NOT NULL) || E'\n', '')
		FROM reconciler.published`, seq))
	return strings.NewReader(lines + `{"end":true}`)
}
