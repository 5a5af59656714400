package e2e_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// giant is how many rows a giant transaction has: a million in the long tier.
var giant = map[bool]int{false: 100_000, true: 1_000_000}[pgtest.Long]

const (
	// Of the rows of a giant transaction one in so many runs in the end, and is a call.
	giantRuns = 100
	// giantPatience is for a busy machine; the work takes seconds.
	giantPatience = 5 * time.Minute
)

// peak returns the most memory that the process has had since it was asked last, in MiB.
func (d *daemon) peak() int {
	d.t.Helper()
	proc := fmt.Sprintf("/proc/%d/", d.cmd.Process.Pid)
	status, err := os.ReadFile(proc + "status")
	require.NoError(d.t, err)
	found := regexp.MustCompile(`(?m)^VmHWM:\s+([0-9]+) kB$`).FindSubmatch(status)
	require.NotNil(d.t, found, "%s", status)
	kib, err := strconv.Atoi(string(found[1]))
	require.NoError(d.t, err)
	require.NoError(d.t, os.WriteFile(proc+"clear_refs", []byte("5"), 0)) // starts VmHWM anew
	return kib >> 10
}

// arrives writes a row and waits until its target has it. It returns how long that took.
func (w *world) arrives(r *receiver, id int, target string) time.Duration {
	w.t.Helper()
	begun := time.Now()
	w.exec(`INSERT INTO apps (id, region, version) VALUES ($1, $2, 7)`, id, target)
	eventually(w.t, giantPatience, func() error {
		if !r.has(target, fmt.Sprintf("app/%d.json", id)) {
			return fmt.Errorf("%s does not have %d", target, id)
		}
		return nil
	}, "a row arrives")
	return time.Since(begun).Round(time.Millisecond)
}

// C20, I2, I9: very many rows in one transaction. They are as many rows of the outbox and objects that are read, coalesced
// and looked at; but for one in a hundred their rows have been stopped before the commit, past the triggers, so
// that the time goes into reading and not into calls. Changes of others arrive while it is open, and while it is worked
// off; memory is what a tenth of it takes; in the end the target has the rows that run, each by one call.
func TestMillionRowsInOneTransaction(t *testing.T) {
	t.Parallel()
	w, r := newGiantWorld(t), newReceiver(t, 0)
	w.exec(fleet)
	w.configure([]object{r.target("eu", object{"concurrency": 16, "timeout": "10m"}), r.target("us")}, object{"log": object{"level": "info", "format": "json"}})
	w.env = []string{"PROCESS=one"}
	d := w.start()
	// A first sync calls for every row that it reads, also for one whose change has been applied just before.
	eventually(t, giantPatience, func() error {
		if done := w.text(`SELECT count(DISTINCT target) FROM reconciler.syncs WHERE state = 'complete'`); done != "2" {
			return fmt.Errorf("%s of 2 targets have been synced", done)
		}
		return nil
	}, "the first syncs are done")
	w.giant(r, giant/10, 1)
	small := d.peak()

	w.giant(r, giant, 2)
	large := d.peak()
	t.Logf("most memory: %d MiB for %d rows, %d MiB for %d", small, giant/10, large, giant)
	require.Less(t, large, small+small/2+32, "memory follows the size of the transaction")
	d.stop()
}

// giant writes rows in one transaction, and looks at what arrives before and after its commit.
func (w *world) giant(r *receiver, rows, round int) {
	w.t.Helper()
	first := round * 10 * giant
	applies, known := r.applies("eu"), len(w.rows()["eu"])
	tx, err := w.db.Conn(w.t).Begin(w.t.Context())
	require.NoError(w.t, err)
	run := func(sql string, args ...any) {
		w.t.Helper()
		_, err := tx.Exec(w.t.Context(), sql, args...)
		require.NoError(w.t, err)
	}
	begun := time.Now()
	run(`INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series($1::int, $2) AS i`, first, first+rows-1)
	inserted := time.Since(begun).Round(time.Millisecond)
	var marks int // as the transaction sees them: retention may take them as soon as they are worked off
	require.NoError(w.t, tx.QueryRow(w.t.Context(), `SELECT count(DISTINCT key) FROM reconciler.outbox WHERE key::int BETWEEN $1 AND $2`, first, first+rows-1).Scan(&marks))
	require.Equal(w.t, rows, marks)
	run(`SET LOCAL session_replication_role = replica`)
	run(`UPDATE apps SET state = 'stopped' WHERE id BETWEEN $1 AND $2 AND id % $3 <> 0`, first, first+rows-1, giantRuns)
	run(`RESET session_replication_role`)
	// While it is open it delays nobody.
	before, beside := w.arrives(r, first-1, "eu"), w.arrives(r, first-2, "us")
	r.hold("eu")
	begun = time.Now()
	run(`COMMIT`)

	// While its target is busy with it another one does not wait.
	other := w.arrives(r, first-3, "us")
	r.let("eu")
	same := w.arrives(r, first-4, "eu")
	eventually(w.t, giantPatience, func() error {
		if left := w.text(`SELECT lag FROM reconciler.status WHERE target = 'eu'`); left != "0" {
			return fmt.Errorf("%s revisions behind", left)
		}
		return nil
	}, "the transaction is worked off")
	w.t.Logf("%d rows, inserted in %s; worked off %s after the commit; a change while it was open: same target %s, other target %s; after the commit: same target %s, other target %s",
		rows, inserted, time.Since(begun).Round(time.Millisecond), before, beside, same, other)
	r.settled(w, "eu", "us")
	require.Len(w.t, w.rows()["eu"], known+rows/giantRuns+2)
	require.Equal(w.t, applies+rows/giantRuns+2, r.applies("eu"), "each row that runs is applied once")
}
