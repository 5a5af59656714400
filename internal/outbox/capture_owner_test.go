package outbox_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Capture code belongs to whoever called track() last: triggers and view read as that role. Others may touch it only as
// members of that role, and then leave it where it is.
func TestCaptureBelongsToWhoTracked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text); CREATE VIEW v AS SELECT id, region FROM apps`)
	ann, ben := w.Role(t, "ann", ""), w.Role(t, "ben", "")
	w.Exec(t, fmt.Sprintf(`SELECT reconciler.grant('%[1]s', 'definer'), reconciler.grant('%[2]s', 'definer'); GRANT SELECT, TRIGGER ON apps, v TO %[1]s, %[2]s`, ann, ben))
	asAnn, asBen := w.ConnAs(t, ann), w.ConnAs(t, ben)
	track := `SELECT reconciler.track('app', 'v', '{id}', 'region', depends_on => '{"apps": {"id": "id"}}')`
	owned := func(by string) {
		t.Helper()
		require.Equal(t, []string{"capture_1_from_1 " + by, "capture_1_truncate " + by, "desired_app " + by}, w.lines(t, `SELECT proname || ' ' || proowner::regrole FROM pg_proc WHERE proname ~ '^capture_[0-9]'
			UNION ALL SELECT relname || ' ' || relowner::regrole FROM pg_class WHERE relname LIKE 'desired\_%' ORDER BY 1`))
		w.marks(t)
		w.marked(t, `INSERT INTO apps VALUES (1, 'eu'); DELETE FROM apps`, `app {"id": 1}`, `app {"id": 1}`)
	}
	_, err := asAnn.Exec(t.Context(), track)
	require.NoError(t, err)
	owned(ann)
	w.Exec(t, `SELECT reconciler.regenerate('app')`) // as superuser
	owned(ann)
	w.Exec(t, `DROP VIEW reconciler.desired_app; SELECT reconciler.regenerate('app')`)
	owned(ann)

	message, hint := fmt.Sprintf(`resource app was tracked by role %s, of which %s is no member`, ann, ben), fmt.Sprintf(`Do it as that role, or: GRANT %s TO %s;`, ann, ben)
	for _, statement := range []string{track[:len(track)-1] + `, always => NULL, running => 'id > 0')`, `SELECT reconciler.regenerate('app')`, `SELECT reconciler.untrack('app')`} {
		require.Equal(t, "42501", refused(t, asBen, statement, message, hint))
	}
	owned(ann)
	w.Exec(t, fmt.Sprintf(`GRANT %s TO %s`, ann, ben))
	_, err = asBen.Exec(t.Context(), `SELECT reconciler.regenerate('app')`)
	require.NoError(t, err)
	owned(ann)
	_, err = asBen.Exec(t.Context(), `SELECT reconciler.track('app', 'v', '{id}', 'lower(region)', depends_on => '{"apps": {"id": "id"}}')`)
	require.NoError(t, err)
	owned(ben)
	w.Exec(t, track) // a superuser takes it over, too
	owned("postgres")
	w.Exec(t, `SELECT reconciler.untrack('app')`)

	// So do the functions over the rows of a table.
	_, err = asBen.Exec(t.Context(), `SELECT reconciler.track('app', 'apps', '{id}', 'region')`)
	require.NoError(t, err)
	rows := `SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE proname ~ '^capture_[0-9]'`
	require.Equal(t, []string{ben}, w.lines(t, rows))
	w.Exec(t, `SELECT reconciler.regenerate('app')`)
	require.Equal(t, []string{ben}, w.lines(t, rows))
	w.marks(t)
	w.marked(t, `INSERT INTO apps VALUES (1, 'eu')`, `app "eu" "1"`)
}
