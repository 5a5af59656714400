package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// page returns the status page once the condition holds for it.
func (d *daemon) page(what string, condition func(status int, body string) bool) (status int, body string) {
	d.t.Helper()
	eventually(d.t, patience, func() (err error) {
		status, body, err = d.get("/")
		if err == nil && !condition(status, body) {
			err = errors.New("the page is old")
		}
		return err
	}, what)
	return status, body
}

// The status page shows applies, and nothing that stands in rows: it needs no token.
func TestStatusPageShowsAppliesAndNothingOfRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE notes (id text PRIMARY KEY, region text NOT NULL, secret text);
		SELECT reconciler.track('note', 'notes', '{id}', 'region')`)
	w.configure([]object{w.fileTarget("ap"), w.fileTarget("eu")})
	d := w.start()
	w.wait()
	status, body := d.page("the process knows that its first syncs are complete", func(_ int, body string) bool {
		return !strings.Contains(body, "its first sync is not complete")
	})
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "<tr><td><bdi>eu</bdi></td><td>file</td><td>owned</td></tr>")
	require.Contains(t, body, "leads.")
	require.Contains(t, body, "<p>There is none.</p>")

	// A key that is too long fails, before eu and a target that no config has have their turn.
	w.exec(`BEGIN; SELECT reconciler.begin_apply('release <script>alert(1)</script>');
		INSERT INTO notes VALUES (repeat('hush', 600), 'ap', 'hush'), ('hush', 'eu', 'hush'), ('hush2', 'hush', 'hush'); COMMIT`)
	require.Equal(t, "failed", w.text(`SELECT state FROM reconciler.apply_wait(1)`))
	status, body = d.page("the page looks again", func(_ int, body string) bool { return !strings.Contains(body, "There is none") })
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "<h3>apply 1 (<bdi>release &lt;script&gt;alert(1)&lt;/script&gt;</bdi>): failed</h3>")
	require.Contains(t, body, "3 of 3 targets done; 0 of 3 objects completed, 1 failed, 0 superseded, 2 pending.\n<br>First failure: ap; `reconciler apply show 1` says why\n<br>Next: Nothing more comes of it. 2 objects in 2 targets keep what the targets have; to let them follow their rows: SELECT reconciler.apply_release(1);")
	require.Contains(t, body, "<tr><td>1</td><td><bdi>ap</bdi></td><td>failed</td><td>0/1</td><td>1</td><td></td></tr>")
	require.Contains(t, body, "<tr><td>2</td><td><bdi>eu</bdi></td><td>halted</td><td>0/1</td><td>0</td><td></td></tr>")
	require.Contains(t, body, "<tr><td>3</td><td>(in no config)</td><td>halted</td><td>0/1</td><td>0</td><td></td></tr>")
	require.NotContains(t, body, "hush")
	require.NotContains(t, body, "<script>")
	require.NotContains(t, body, "longer than", "an error text")

	w.exec(`ALTER VIEW reconciler.apply_status RENAME TO away`)
	status, body = d.page("the page has nothing to show", func(status int, _ string) bool { return status != http.StatusOK })
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "<p>The database does not answer.</p>")
	require.NotContains(t, body, "apply_status")
}

// The page shows the newest applies, and the first targets of each: it stays small when there are many.
func TestStatusPageIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE notes (id int PRIMARY KEY, region text NOT NULL);
		SELECT reconciler.track('note', 'notes', '{id}', 'region')`)
	w.configure([]object{w.fileTarget("eu")})
	d := w.start()
	w.wait()
	for i := range 8 {
		w.exec(fmt.Sprintf(`BEGIN; SELECT reconciler.begin_apply('ended %d'); INSERT INTO notes VALUES (%d, 'eu'); COMMIT`, i, i))
	}
	require.Equal(t, "8", w.text(`SELECT count(*) FROM reconciler.applies a, reconciler.apply_wait(a.id) AS s WHERE s.state = 'completed'`))
	w.exec(`SELECT reconciler.pause('eu')`)
	for i := range 22 {
		w.exec(fmt.Sprintf(`BEGIN; SELECT reconciler.begin_apply('under way %d'); INSERT INTO notes VALUES (%d, 'eu'); COMMIT`, i, 100+i))
	}
	w.exec(`BEGIN; SELECT reconciler.begin_apply('wide'); INSERT INTO notes SELECT i, 'nowhere-' || i FROM generate_series(1001, 1060) AS i; COMMIT`)
	_, body := d.page("the page shows the newest apply", func(_ int, body string) bool {
		return strings.Contains(body, "<p>... and 10 more targets</p>")
	})
	require.Equal(t, 50, strings.Count(body, "<td>(in no config)</td>"))
	var shown []string
	for _, title := range regexp.MustCompile(`<h3>apply \d+ \(<bdi>(.*)</bdi>\)`).FindAllStringSubmatch(body, -1) {
		shown = append(shown, title[1])
	}
	want := []string{"wide"}
	for i := 21; i > 2; i-- {
		want = append(want, fmt.Sprintf("under way %d", i))
	}
	for i := 7; i > 2; i-- {
		want = append(want, fmt.Sprintf("ended %d", i))
	}
	require.Equal(t, want, shown)
}
