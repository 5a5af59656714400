package outbox_test

import "testing"

// I1: who leaves columns out of the spec must not lose moves and stops. What target and running read is watched all the
// same; an expression over the whole row reads all of it.
func TestCaptureOfIgnoredColumnsThatPlaceTheObject(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, zone text, state text, seen timestamptz, note text);
	SELECT reconciler.track('app', 'apps', '{id}', $$region || '-' || zone$$, $$state = 'on'$$, ignore => '{region,zone,state,seen}');
	CREATE FUNCTION place(row_ apps) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT row_.region';
	SELECT reconciler.track('whole', 'apps', '{id}', 'place(apps)', ignore => '{region,seen}')`)
	w.marked(t, `INSERT INTO apps VALUES (1, 'eu', 'a', 'on')`, `app "eu-a" "1"`, `whole "eu" "1"`)
	w.marked(t, `UPDATE apps SET zone = 'b'`, `app "eu-a" "1"`, `app "eu-b" "1"`, `whole "eu" "1"`)
	w.marked(t, `UPDATE apps SET region = 'us'`, `app "eu-b" "1"`, `app "us-b" "1"`, `whole "eu" "1"`, `whole "us" "1"`)
	w.marked(t, `UPDATE apps SET state = 'off'`, `app "us-b" "1"`, `whole "us" "1"`)
	w.marked(t, `UPDATE apps SET state = 'on'`, `app "us-b" "1"`, `whole "us" "1"`)
	w.marked(t, `UPDATE apps SET seen = now()`, `whole "us" "1"`)
	w.marked(t, `UPDATE apps SET note = 'x'`, `app "us-b" "1"`, `whole "us" "1"`)
}
