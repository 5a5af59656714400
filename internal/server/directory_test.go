package server_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/file"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// A file target whose directory is another one's is down, says why, and touches nothing; until the directory is handed over.
func TestF4_ADirectoryOfAnotherTargetIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, image text)`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(image)')`)
	dir := t.TempDir()
	foreign := filepath.Join(dir, "app", "9.json")
	require.NoError(t, os.Mkdir(filepath.Dir(foreign), 0o700))
	require.NoError(t, os.WriteFile(foreign, []byte("theirs"), 0o600))
	mark := filepath.Join(dir, ".reconciler-owner")
	require.NoError(t, os.WriteFile(mark, []byte(`{"target":"us","database":"other","system":"1","id":"2"}`), 0o600))
	d, err := file.Kind().Open("eu", driver.Options{"dir": dir}, driver.Env{Getenv: os.Getenv, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	w.Start(servertest.Named("eu", d))
	w.Settled("true", `SELECT (count(*) > 0)::text FROM reconciler.syncs WHERE state = 'failed' AND error LIKE '%belongs to target us of database other%'`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (1, 'v1'), (2, 'v1'), (3, 'v1'), (4, 'v1')`)
	w.Settled("true", `SELECT (count(*) > 0)::text FROM reconciler.doctor() WHERE NOT ok AND finding LIKE '%belongs to target us of database other%'`)
	require.FileExists(t, foreign)
	require.NoFileExists(t, filepath.Join(dir, "app", "1.json"))

	require.NoError(t, os.Remove(mark))
	w.Eventually("the directory is its own", func() bool {
		_, gone := os.Stat(foreign)
		text, err := os.ReadFile(filepath.Join(dir, "app", "1.json"))
		return os.IsNotExist(gone) && err == nil && string(text) == "v1"
	})
	said, err := os.ReadFile(mark)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(said), `{"target":"eu","database":"`+w.Text(`SELECT current_database()`)+`"`), string(said))
}
