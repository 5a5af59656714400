package watch_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Bad input has one error each, and nothing of the body is stored.
func TestBadReports(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a", "b")
	a, v := seen("a", b.version("a"), "applied"), b.version("b")
	line := func(text string) []string { return []string{head("s", 1, true), a, text, end} }
	for _, test := range []struct {
		lines []string
		want  string
	}{
		{nil, `400 the body ends after line 1 without {"end":true}: it was cut, and nothing of it is stored`},
		{[]string{`{"seq":1}`, end}, "400 line 1: session must be a text of 1 to 64 bytes"},
		{[]string{`{"session":"` + strings.Repeat("s", 65) + `","seq":1}`, end}, "400 line 1: session must be a text of 1 to 64 bytes"},
		{[]string{`{"session":"\u0000","seq":1}`, end}, "400 line 1: session must be a text of 1 to 64 bytes"},
		{[]string{`{"session":"s"}`, end}, "400 line 1: seq must be a whole number from 1 on, which grows with each report of the session"},
		{[]string{`{"session":"s","seq":1.5}`, end}, "400 line 1: seq must be a whole number, not number 1.5"},
		{[]string{`{"session":"s","seq":99999999999999999999}`, end}, "400 line 1: seq must be a whole number, not number 99999999999999999999"},
		{[]string{`{"session":"s","seq":1,"compleet":true}`, end}, `400 line 1: is not what a report has: unknown field "compleet"`},
		{[]string{`{"session":"s","seq":1,"version":1}`, end}, "400 line 1: version is that of a frame up to which a complete report goes, a whole number from 1 on"},
		{[]string{`{"session":"s","seq":1,"complete":true,"version":-1}`, end}, "400 line 1: version is that of a frame up to which a complete report goes, a whole number from 1 on"},
		{[]string{fmt.Sprintf(`{"session":"s","seq":1,"complete":true,"version":%d}`, v+1), a, end}, fmt.Sprintf("400 line 1: version %d was never published: the newest of this target is %d", v+1, v)},
		{[]string{`[1]`, end}, "400 line 1: must be a JSON object, not array"},
		{[]string{a, end}, `400 line 1: is not what a report has: unknown field "resource"`},
		{line(`{"key":"b","version":1,"state":"applied"}`), "400 line 3: resource is missing"},
		{line(`{"resource":"app","version":1,"state":"applied"}`), "400 line 3: key is missing"},
		{line(`{"resource":"app","key":"b","state":"applied"}`), "400 line 3: version must be the version of a frame, a whole number from 1 on"},
		{line(`{"resource":"app","key":"b","version":-1,"state":"applied"}`), "400 line 3: version must be the version of a frame, a whole number from 1 on"},
		{line(`{"resource":"app","key":"b","version":1}`), `400 line 3: state must be one of absent, applied, failed, progressing, not ""`},
		{line(seen("b", 1, "aplied")), `400 line 3: state must be one of absent, applied, failed, progressing, not "aplied"`},
		{line(seen("b", v+1, "applied")), fmt.Sprintf("400 line 3: version %d was never published: the newest of this target is %d", v+1, v)},
		{line(`{"resource":"ap\"p","key":"b","version":1,"state":"applied"}`), `400 line 3: there is no resource "ap\"p"`},
		{line(`{"resource":"\u0000","key":"b","version":1,"state":"applied"}`), "400 line 3: there is no resource \"\uFFFD\""},
		{line(`{"resource":"app","key":"b","version":1,"state":"applied","healthy":"yes"}`), "400 line 3: healthy must be true or false, not string"},
		{line(`{"resource":"app","key":"b","version":1,"state":"applied","status":[1]}`), "400 line 3: status must be a JSON object"},
		{line(`{"resource":"app","key":"b","version":1,"state":"applied","status":{"a":"` + strings.Repeat("x", 16<<10) + `"}}`), "413 line 3: status has 16392 bytes, and at most 16384 are stored"},
		{line(`{"resource":"app","key":"b","version":1,"state":"applied","status":{"a":"\u0000"}}`), `400 line 3: status holds \u0000, which PostgreSQL cannot store`},
		{line(`{"resource":"app","key":"b","version":1,"state":"applied","status":{"\u0000":1}}`), `400 line 3: status holds \u0000, which PostgreSQL cannot store`},
		{line(`{"resource":"app","key":"b","version":1,"state":"applied","status":{"a":[1e999999]}}`), "400 line 3: status holds a number that is beyond double precision"},
		{line(`{"resource":"app","key":"b","version":1,"state":"applied","status":{"a":1e-9999}}`), "400 line 3: status holds a number that is beyond double precision"},
		{line(`{"resource":"app","key":"b","version":1,"state":"applied","status":{"a":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}}`), "400 line 3: status is nested deeper than 32 levels"},
		{line("{\"resource\":\"app\",\"key\":\"\xff\",\"version\":1,\"state\":\"applied\"}"), "400 line 3 is not valid UTF-8"},
		{line(`{"resource":"app"} {}`), "400 line 3: holds more than one JSON value"},
		{line(`{"resource":"app",`), "400 line 3: is not what a report has: unexpected EOF"},
		{line(strings.Repeat(" ", 64<<10) + "{}"), "413 line 3 is longer than 65536 bytes"},
		{[]string{head("s", 1, true), `{"end":false}`}, `400 line 2: the last line is {"end":true}`},
		{[]string{head("s", 1, true), end, a}, `400 line 3 follows {"end":true}`},
	} {
		require.Equal(t, test.want, b.refused(body(test.lines...)), "%.200q", test.lines)
	}
	require.Equal(t, `400 Content-Encoding "br" is not known: there is gzip`, b.refused(body(end), "Content-Encoding", "br"))
	require.Equal(t, `400 the body is not gzip, as Content-Encoding says`, b.refused(body(head("s", 1, true), end), "Content-Encoding", "gzip"))
	rows := []string{head("s", 1, false)}
	for range 100_001 {
		rows = append(rows, a)
	}
	require.Equal(t, "413 a report has at most 100000 observations: send the others in another one", b.refused(body(append(rows, end)...)))
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	blank := bytes.Repeat(append(bytes.Repeat([]byte(" "), 60_000), '\n'), 1200)
	_, err := w.Write(blank)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.Equal(t, "413 the body is larger than 67108864 bytes: send it in several reports", b.refused(&bomb, "Content-Encoding", "gzip"))

	for _, test := range []struct {
		path, want string
		status     int
	}{
		{"/v1/targets/us/observations", "target \"us\" has no stream: it needs `driver: stream` in the config of a running process", 404},
		{"/v1/targets/soon/observations", "target \"soon\" has no stream yet: its owner has not started", 503},
		{"/v1/targets/%00/observations", "target \"\\x00\" has no stream: it needs `driver: stream` in the config of a running process", 404},
		{observations + "?watch=true", `unknown parameter "watch": there are none here`, 400},
	} {
		status, text := b.post(test.path, body(head("s", 1, true), end))
		var answer struct{ Error string }
		require.NoError(t, json.Unmarshal([]byte(text), &answer))
		require.Equal(t, test.want, answer.Error)
		require.Equal(t, test.status, status)
	}
	require.Empty(t, b.observed())
	var known bool
	b.query(`SELECT session IS NOT NULL FROM reconciler.reports`, &known)
	require.False(t, known, "nothing at all")
}

// What is hostile and may be said is stored, and what is not published is not.
func TestHostileReport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	keys := []string{`a"';--`, `b\u0041`, "c\u2028", "../d"}
	b.apply(`1`, keys...)
	b.apply(`1`, "twice")
	lines := []string{head(`s"';`, 1, true)}
	for _, key := range keys {
		text, err := json.Marshal(map[string]any{
			"resource": "app", "key": key, "version": b.version(key), "state": "failed", "message": strings.Repeat("ü", 501), "status": json.RawMessage(`{"a":"\ud800","a":1e300}`),
		})
		require.NoError(t, err)
		lines = append(lines, string(text))
	}
	lines = append(lines, seen("twice", b.version("twice"), "failed"), seen("twice", b.version("twice"), "applied"),
		seen("unheard of", 1, "applied"), `{"resource":"app","key":"\u0000","version":1,"state":"applied"}`,
		seen(keys[0], b.version("twice"), "applied")) // a version of another object
	require.JSONEq(t, `{"accepted":4,"ignored":5}`, b.report(append(lines, end)...))
	var text string
	b.query(`SELECT string_agg(DISTINCT octet_length(message) || status::text, ' ') FROM reconciler.observations`, &text)
	require.Equal(t, "1000{\"a\": 1"+strings.Repeat("0", 300)+"}", text)
	b.query(`SELECT string_agg(key, ' ' ORDER BY key) FROM reconciler.observations`, &text)
	require.Equal(t, strings.Join([]string{keys[3], keys[1], keys[2], "twice"}, " "), text)
}
