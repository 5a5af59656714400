package e2e_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// A reload command that fails harms no object, so nothing else tells of it: status and doctor do, until it succeeds.
func TestFailingReloadCommandIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(fleet)
	w.exec(`INSERT INTO apps (id, region) VALUES (1, 'eu')`)
	mended := w.path("mended")
	reload := object{"command": []string{"sh", "-c", "test -e " + mended + " || { echo 'no such unit' >&2; exit 3; }"}, "debounce": "0s"}
	target := w.fileTarget("eu")
	target["options"].(object)["reload"] = reload
	w.configure([]object{target})
	w.start()
	w.wait()

	// Whatever a person orders makes the owner look at its driver at once; by itself it does so every 15 seconds.
	const look = `SELECT coalesce((SELECT trouble FROM reconciler.status), 'none') FROM pg_notify('reconciler_control', '')`
	w.becomes("reload command: exit status 3: no such unit", look)
	require.Equal(t, "ok", w.status()["eu"].State)
	require.Contains(t, w.ok("status"), "\neu: reload command: exit status 3: no such unit\n")
	require.Equal(t, "eu: reload command: exit status 3: no such unit", w.text(`SELECT finding FROM reconciler.doctor() WHERE check_name = 'targets'`))

	require.NoError(t, os.WriteFile(mended, nil, 0o600))
	w.becomes("none", look)
	require.Equal(t, "1 target, nothing is in the way", w.text(`SELECT finding FROM reconciler.doctor() WHERE check_name = 'targets'`))
}
