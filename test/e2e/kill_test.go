package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// C33, C74: killed while it works on the first sync, then rows go while it is down. What its calls left behind, known to
// the ledger or not, is deleted, also in a target that cannot list.
func TestRowsDeletedWhileItIsDownLeaveNoOrphan(t *testing.T) {
	t.Parallel()
	type killed struct {
		target  func(w *world) object
		during  string // what the process is killed in
		objects int    // enough for it to be in that still when it is seen to have begun
	}
	file := func(w *world) object { return w.fileTarget("eu") }
	program := func(w *world) object { return w.journalTarget("eu", 20*time.Millisecond) }
	cases := map[string]killed{"ExecDuringFirstSync": {program, "first sync", 2000}}
	if pgtest.Long {
		cases["FileDuringFirstSync"] = killed{file, "first sync", 20_000}
		cases["ExecDuringLiveBursts"] = killed{program, "burst", 2000}
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
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
			require.Equal(t, map[string]string{"app/7.json": "{\"id\": 7, \"version\": 1}\n"}, files(t, dir), "VIOLATION: files differ from the rows")
			require.Equal(t, []string{"7"}, w.column(`SELECT key FROM reconciler.objects`), "VIOLATION: the ledger has other objects than the rows")
		})
	}
}
