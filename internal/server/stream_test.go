package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/stream"
)

// streaming is a target with the driver stream.
func streaming(t *testing.T, change ...func(*config.Target)) target {
	t.Helper()
	d, err := stream.Kind().Open("eu", driver.Options{}, driver.Env{})
	require.NoError(t, err)
	return named("eu", d, append(change, func(c *config.Target) { c.Driver = "stream" })...)
}

// published describes what the streams have published.
func (w *world) published() string {
	return w.text(`SELECT coalesce(string_agg(t.name || '/' || p.resource || '/' || p.key || '=' || coalesce(p.spec::text, '-'), ' ' ORDER BY t.name, p.resource, p.key), '')
		FROM reconciler.published p JOIN reconciler.targets t ON t.id = p.target_id`)
}

// A stream has what its rows ask for, with tombstones, and follows changes.
func TestStreamPublishesItsRows(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(3)
	p := w.start(streaming(t))
	w.eventually("the stream is complete", func() bool { return w.text(`SELECT count(*)::text FROM reconciler.streams WHERE complete`) == "1" })
	require.Equal(t, `eu/app/1="v1" eu/app/2="v1" eu/app/3="v1"`, w.published(), "when it is complete, everything is published")
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1; DELETE FROM apps WHERE id = 2; INSERT INTO apps VALUES (4, 'eu', 'v1')`)
	w.wait()
	require.Equal(t, `eu/app/1="v2" eu/app/2=- eu/app/3="v1" eu/app/4="v1"`, w.published())
	p.stop(t)

	w.db.Exec(t, `UPDATE reconciler.published SET spec = '"edited"', hash = '\x00112233445566778899aabbccddeeff' WHERE key = '3'`)
	w.db.Exec(t, `DELETE FROM apps WHERE id = 4`)
	w.start(streaming(t))
	w.wait()
	require.Equal(t, `eu/app/1="v2" eu/app/2=- eu/app/3="v1" eu/app/4=-`, w.published(), "a process that begins repairs what it finds")
}

// I6, S8: the guard, which holds deletes, holds them back from those who follow.
func TestStreamPublishesNoDeleteThatTheGuardHolds(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(30)
	w.start(streaming(t, func(c *config.Target) { c.Guard.MaxDeletes = new(5) }))
	w.wait()
	before := w.published()
	w.db.Exec(t, `DELETE FROM apps`)
	w.eventually("the guard holds the deletes", func() bool { return w.text(`SELECT coalesce(guard_deletes, 0)::text FROM reconciler.targets`) == "30" })
	require.Equal(t, before, w.published())
	w.db.Exec(t, `SELECT reconciler.approve('eu')`)
	w.wait()
	require.Equal(t, "30", w.text(`SELECT count(*)::text FROM reconciler.published WHERE spec IS NULL`))
}

// A restore, or what start_over() makes of one, ends the epoch; the next full sync completes the new one.
func TestStreamIsCompleteAgainAfterStartOver(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(3)
	w.start(streaming(t))
	complete := func() bool { return w.text(`SELECT count(*)::text FROM reconciler.streams WHERE complete`) == "1" }
	w.eventually("the stream is complete", complete)
	tx := w.begin()
	w.in(tx, `SELECT reconciler.start_over('restored')`)
	var still bool
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT complete FROM reconciler.streams`).Scan(&still))
	require.False(t, still)
	require.NoError(t, tx.Commit(t.Context()))
	w.eventually("the stream is complete again", complete)
	require.Equal(t, `eu/app/1="v1" eu/app/2="v1" eu/app/3="v1"`, w.published())
}

// What a target has published by the driver stream goes when another driver takes its place.
func TestStreamGoesWhenItsTargetHasAnotherDriver(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(2)
	p := w.start(streaming(t))
	w.wait()
	p.stop(t)
	require.NotEmpty(t, w.published())
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, map[string]string{"app/1": `"v1"`, "app/2": `"v1"`})
	require.Equal(t, "0", w.text(`SELECT count(*)::text FROM reconciler.streams`))
	require.Empty(t, w.published())
}
