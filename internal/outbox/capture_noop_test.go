package outbox_test

import "testing"

// I8: with every column watched, an update that changes nothing writes nothing either; json has no equality of its own.
func TestCaptureOfNothingWithEveryColumnWatched(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, doc json);
	SELECT reconciler.track('app', 'apps', '{id}', 'region')`)
	w.marked(t, `INSERT INTO apps VALUES (1, 'eu', '{"a": 1}')`, `app "eu" "1"`)
	w.marked(t, `UPDATE apps SET doc = doc, region = 'eu'`)
	w.marked(t, `UPDATE apps SET doc = '{"a": 2}'`, `app "eu" "1"`)

	// Nor does one of a base table that is read as a whole.
	w.marked(t, `CREATE TABLE base (id int PRIMARY KEY, doc json); INSERT INTO base VALUES (1, '{"a": 1}'); CREATE VIEW whole AS SELECT b.id, to_json(b) AS spec FROM base b;
		SELECT reconciler.track('whole', 'whole', '{id}', '''eu''', spec => 'spec', depends_on => '{"base": {"id": "id"}}')`, `whole everywhere whole`)
	w.marked(t, `UPDATE base SET doc = doc`)
	w.marked(t, `UPDATE base SET doc = '{"a": 2}'`, `whole {"id": 1}`)
}
