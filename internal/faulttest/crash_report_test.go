package faulttest_test

import (
	"bytes"
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

// crashFollowed adds a target whose objects are followed over HTTP.
func crashFollowed(w *crashWorld) {
	w.t.Helper()
	text, err := os.ReadFile(w.path("reconciler.yaml"))
	require.NoError(w.t, err)
	var config crashObject
	require.NoError(w.t, json.Unmarshal(text, &config))
	config["streams"] = crashObject{"listen": "127.0.0.1:0"}
	config["targets"] = append(config["targets"].([]any), crashObject{"name": "edge", "driver": "stream", "guard": crashObject{"max_fraction": 1}})
	text, err = json.Marshal(config)
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(w.path("reconciler.yaml"), text, 0o600))
	w.exec(fmt.Sprintf(`INSERT INTO apps (id, region) SELECT i, 'edge' FROM generate_series(20001, %d) AS i`, 20_000+followedObjects))
}

// crashReported reports everything to a process that dies of it. The client has no answer.
func crashReported(w *crashWorld, p *crashProcess) {
	w.fill()
	_, err := http.Post(p.observations(), "", w.inventory()) //nolint:bodyclose,noctx // there is none
	require.Error(w.t, err)
}

// reportedOnce sends the report again, to another process.
func reportedOnce(w *crashWorld) {
	w.t.Helper()
	p := w.start("", 0, "run").synced()
	response, err := http.Post(p.observations(), "", w.inventory()) //nolint:noctx // it ends with the test
	require.NoError(w.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	require.Equal(w.t, fmt.Sprintf(`{"accepted":%d,"ignored":0}`, followedObjects)+"\n", string(text))
	require.Equal(w.t, fmt.Sprintf("%d applied of %[1]d", followedObjects), w.text(`SELECT count(*) FILTER (WHERE o.state = 'applied' AND o.version = p.version) || ' applied of ' || count(*)
		FROM reconciler.observations o JOIN reconciler.published p ON p.target_id = o.target_id AND p.key = o.key`), "VIOLATION: a report was lost or counted twice")
	require.Equal(w.t, "client 1 1", w.text(`SELECT session || ' ' || session_id || ' ' || seq FROM reconciler.reports`))
	w.exec(`DELETE FROM apps WHERE region = 'edge'`)
	w.wait()
	p.stop()
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
	text, err := os.ReadFile(p.log)
	require.NoError(p.w.t, err)
	for line := range bytes.Lines(text) {
		var said struct{ Key, Address string }
		if json.Unmarshal(line, &said) == nil && said.Key == "streams.listen" {
			return "http://" + said.Address + "/v1/targets/edge/observations"
		}
	}
	require.FailNow(p.w.t, "streams are not served")
	return ""
}

// inventory is a complete report of what the stream has.
func (w *crashWorld) inventory() io.Reader {
	w.t.Helper()
	lines := w.text(`SELECT string_agg(format('{"resource":"app","key":"%s","version":%s,"state":"applied"}', key, version), E'\n') FROM reconciler.published WHERE spec IS NOT NULL`)
	return strings.NewReader(`{"session":"client","seq":1,"complete":true}` + "\n" + lines + "\n" + `{"end":true}`)
}
