package watch_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// from is the first line of a report with what the client tells of itself.
func from(session string, seq int, client string) string {
	return fmt.Sprintf(`{"session":%q,"seq":%d,"client":%s}`, session, seq, client)
}

// agent is what the server knows of the client.
func (b *bed) agent() (text string) {
	b.t.Helper()
	b.query(`SELECT concat_ws(' ', session, client_name, client_version, client_driver, held::text, trouble, healthy::text) FROM reconciler.reports`, &text)
	return text
}

// The newest report that has a client tells who reports, until another session begins.
func TestReportTellsWhoSendsIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	full := `{"name":"host-7","version":"1.2.0","driver":"file","held":3,"trouble":"circuit open","healthy":false}`
	b.report(head("s", 1, false), end)
	require.Equal(t, "s", b.agent())
	b.report(from("s", 3, full), end)
	require.Equal(t, "s host-7 1.2.0 file 3 circuit open false", b.agent())
	for _, late := range []string{from("s", 2, `{"name":"late"}`), head("s", 4, false), head("s", 5, true), from("s", 6, "null")} {
		b.report(late, end)
		require.Equal(t, "s host-7 1.2.0 file 3 circuit open false", b.agent(), late)
	}
	b.report(from("s", 7, `{"name":"host-8","healthy":true}`), end)
	require.Equal(t, "s host-8 0 true", b.agent(), "a member that is missing is none")
	b.report(from("s", 8, `{}`), end)
	require.Equal(t, "s 0", b.agent())
	b.report(from("s", 9, full), end)
	b.report(head("t", 1, false), end)
	require.Equal(t, "t", b.agent(), "another run of a client may be another client")
}

// A report of a session that another one has replaced shows, and is written down once a minute.
func TestReportOfAReplacedSessionShows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ignored := func() (text string) {
		t.Helper()
		b.query(`SELECT CASE WHEN ignored_at IS NULL THEN '' WHEN ignored_at < session_since + interval '1 minute' THEN ignored_client || ' just now' ELSE ignored_client END FROM reconciler.reports`, &text)
		return text
	}
	b.report(from("one", 1, `{"name":"host-1"}`), end)
	b.report(from("two", 1, `{"name":"host-2"}`), end)
	b.report(from("two", 1, `{"name":"host-2"}`), end)
	require.Empty(t, ignored())
	b.report(head("one", 2, false), end)
	require.Equal(t, "one just now", ignored())
	b.report(from("one", 3, `{"name":"host-1"}`), end)
	require.Equal(t, "one just now", ignored(), "a minute has not passed")
	b.report(from("two", 2, `{"name":"host-2"}`), end)
	b.db.Exec(t, `UPDATE reconciler.reports SET ignored_at = ignored_at - interval '2 minutes', session_since = session_since - interval '2 minutes'`)
	b.report(from("one", 4, `{"name":"host-1"}`), end)
	require.Equal(t, "host-1", ignored())
	require.Equal(t, "two host-2 0", b.agent(), "its reports change nothing else")
	b.report(from("three", 1, `{"name":"host-2"}`), end)
	require.Empty(t, ignored())
	var begun bool
	b.query(`SELECT session_since = reported_at FROM reconciler.reports`, &begun)
	require.True(t, begun)
}

func TestBadClientsOfReports(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := func(field string, most int) string {
		return fmt.Sprintf("400 line 1: client.%s must be a text of at most %d bytes without control characters", field, most)
	}
	for client, want := range map[string]string{
		`{"name":"` + strings.Repeat("n", 129) + `"}`:    text("name", 128),
		`{"name":"` + strings.Repeat("ü", 65) + `"}`:     text("name", 128),
		`{"name":"\u0000"}`:                              text("name", 128),
		`{"name":"a\u001b[2Jb"}`:                         text("name", 128),
		`{"name":"a\u202eb"}`:                            text("name", 128),
		`{"version":"` + strings.Repeat("1", 65) + `"}`:  text("version", 64),
		`{"driver":"a\nb"}`:                              text("driver", 64),
		`{"name":"` + strings.Repeat("n", 10<<20) + `"}`: "413 line 1 is longer than 65536 bytes",
		`{"held":-1}`:                                    "400 line 1: client.held must be a whole number from 0 on",
		`{"held":1.5}`:                                   "400 line 1: client.held must be a whole number, not number 1.5",
		`{"held":99999999999999999999}`:                  "400 line 1: client.held must be a whole number, not number 99999999999999999999",
		`{"name":7}`:                                     "400 line 1: client.name must be a text, not number",
		`{"healthy":"yes"}`:                              "400 line 1: client.healthy must be true or false, not string",
		`{"nmae":"host-7"}`:                              `400 line 1: is not what a report has: unknown field "nmae"`,
		`"host-7"`:                                       "400 line 1: client must be an object, not string",
		`{"trouble":["a"]}`:                              "400 line 1: client.trouble must be a text, not array",
	} {
		require.Equal(t, want, b.refused(body(from("s", 1, client), end)), "%.100s", client)
	}
	require.Empty(t, b.agent(), "nothing of them is stored")
	b.report(from("s", 1, `{"name":"a\"';--ü","trouble":"`+strings.Repeat("ü", 501)+`\u0000","held":9223372036854775807}`), end)
	require.Equal(t, `s a"';--ü 9223372036854775807 `+strings.Repeat("ü", 500), b.agent())
	b.report(from("s", 2, `{"trouble":"\u0000","healthy":null}`), end)
	require.Equal(t, "s 0 \uFFFD", b.agent())
}
