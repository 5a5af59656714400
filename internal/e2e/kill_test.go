package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// C33, I1, I7: whenever the process is killed, in the end the files are the rows.
func TestKilledAtRandomItLosesNothing(t *testing.T) {
	t.Parallel()
	for _, kills := range []int{2, 3} {
		t.Run(fmt.Sprintf("%dTimes", kills), func(t *testing.T) {
			t.Parallel()
			r := chance(t)
			w := newWorld(t)
			w.exec(fleet + ";" + versions)
			w.exec(`INSERT INTO apps (id, region) SELECT i, (array['eu', 'us'])[1 + i % 2] FROM generate_series(1, 400) AS i`)
			w.configure([]object{w.fileTarget("eu"), w.fileTarget("us")})
			writers := w.write(r, load{writers: 4, every: 15 * time.Millisecond, objects: 400, regions: []string{"eu", "us"}})
			for range kills {
				w.killed(r)
			}
			w.start()
			pass(between(r, 0, time.Second), t.Context().Done())
			writers.stop()
			w.converges("eu", "us")
			// I7: the ledger has what the targets have, no more and no less.
			require.Equal(t, w.text(`SELECT count(*) FROM apps WHERE state = 'running'`), w.text(`SELECT count(*) FROM reconciler.objects`))
			require.Equal(t, "0", w.text(`SELECT count(*) FROM reconciler.failing`))
		})
	}
}

// killed starts a process and kills it at a random moment: before it owns anything, or up to a second after.
func (w *world) killed(r *rand.Rand) {
	w.t.Helper()
	d := w.start()
	if r.IntN(4) > 0 {
		d.awaits("target_owned")
	}
	pass(between(r, 0, time.Second), d.exited)
	require.Zero(w.t, d.logged("stopped"))
	d.kill()
}

// C33, C74: killed while it works on the first sync, then rows go while it is down. What its calls left behind, known to
// the ledger or not, is deleted, also in a target that cannot list.
func TestRowsDeletedWhileItIsDownLeaveNoOrphan(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		target  func(w *world) object
		during  string // what the process is killed in
		objects int    // enough for it to be in that still when it is seen to have begun
	}{
		"FileDuringFirstSync":  {func(w *world) object { return w.fileTarget("eu") }, "first sync", 5000},
		"ExecDuringFirstSync":  {func(w *world) object { return w.journalTarget("eu", 20*time.Millisecond) }, "first sync", 200},
		"ExecDuringLiveBursts": {func(w *world) object { return w.journalTarget("eu", 20*time.Millisecond) }, "burst", 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := chance(t)
			w := newWorld(t)
			w.exec(fleet)
			target := tc.target(w)
			w.configure([]object{target})
			dir := w.path("eu")
			if target["driver"] == "exec" {
				dir = w.path("eu/objects")
			}
			fill := fmt.Sprintf(`INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series(1, %d) AS i`, tc.objects)
			if tc.during == "first sync" {
				w.exec(fill)
			}
			d := w.start()
			if tc.during == "burst" {
				d.awaits("sync_complete")
				w.exec(fill)
			}
			seen := 1 + r.IntN(100)
			eventually(t, patience, func() error {
				if n := len(files(t, dir)); n < seen {
					return fmt.Errorf("%d objects", n)
				}
				return nil
			}, "objects of the first process")
			d.kill()
			left := files(t, dir)
			t.Logf("killed with %d objects there, %s of them in the ledger", len(left), w.text(`SELECT count(*) FROM reconciler.objects WHERE applied_at IS NOT NULL`))
			require.Less(t, len(left), tc.objects, "it was killed too late")
			w.exec(`DELETE FROM apps WHERE id <> 7`)
			w.start()
			w.wait()
			require.Equal(t, map[string]string{"app/7.json": "{\"id\": 7, \"version\": 1}\n"}, files(t, dir))
			require.Equal(t, []string{"7"}, w.column(`SELECT key FROM reconciler.objects`))
		})
	}
}
