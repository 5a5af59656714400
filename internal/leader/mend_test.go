package leader

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/pace"
)

// F25: writers wait behind a repair that waits for one of them, so it waits for next to nothing, and more rarely each time.
func TestF25_RepairStallsNoWriters(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(`INSERT INTO apps (id) VALUES ('a'); ALTER TABLE apps DISABLE TRIGGER ALL`)
	writer := b.begin()
	b.in(writer, `UPDATE apps SET id = id`)
	m := &mender{steward: &Steward{Pool: b.db.Pool, Logger: b.log}}
	pauses := []time.Duration{}
	for range 7 {
		_, err := m.turn(t.Context())
		require.Equal(t, "55P03", database.Code(err), "%v", err)
		last := m.tries["app"]
		pauses = append(pauses, last.pause)
		last.next = time.Time{}
		m.tries["app"] = last
	}
	want := []time.Duration{15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute}
	for i := range want {
		want[i] = pace.Of(want[i])
	}
	require.Equal(t, want, pauses)
	m.tries["app"] = try{pause: time.Minute, next: time.Now().Add(time.Hour), err: m.tries["app"].err}
	b.commit(writer)
	_, err := m.turn(t.Context())
	require.Error(t, err, "it is not tried before its time")
	m.tries = nil
	_, err = m.turn(t.Context())
	require.NoError(t, err)
	require.Equal(t, "0", b.text(`SELECT count(*)::text FROM reconciler.capture_problems()`))

	b.exec(`CREATE OR REPLACE FUNCTION reconciler.install_capture(resource_id integer, owner oid DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'it waits for %', current_setting('lock_timeout'); END $$;
		ALTER TABLE apps DISABLE TRIGGER ALL`)
	_, err = m.turn(t.Context())
	require.ErrorContains(t, err, "it waits for 100ms")
}
