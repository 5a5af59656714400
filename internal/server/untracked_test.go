package server_test

import "testing"

// Who asks for a sync of a resource may learn of it after it has gone: no target must stop on that account.
func TestF14_ResourceThatIsTrackedAndUntrackedAtOnceStopsNobody(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string][]string{
		"TrackAndUntrack":    {`BEGIN; SELECT reconciler.track('y', 'apps', '{id}', 'region'); SELECT reconciler.untrack('y'); COMMIT`},
		"TruncateAndUntrack": {`SELECT reconciler.track('y', 'others', '{id}', 'region')`, `BEGIN; TRUNCATE others; SELECT reconciler.untrack('y'); COMMIT`},
	} {
		for _, running := range []bool{true, false} {
			t.Run(name+map[bool]string{true: "", false: "WhileItIsStopped"}[running], func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				w.db.Exec(t, `CREATE TABLE others (id int PRIMARY KEY, region text NOT NULL)`)
				want := w.fleet(1)
				eu, us := newPlace(), newPlace()
				p := w.start(named("eu", eu), named("us", us))
				eu.eventually(t, want)
				w.wait()
				if !running {
					p.stop(t)
				}
				for _, sql := range statements {
					w.db.Exec(t, sql)
				}
				w.db.Exec(t, `INSERT INTO apps (id, region, image) VALUES (2, 'eu', 'v1')`)
				if !running {
					w.start(named("eu", eu), named("us", us))
				}
				want["app/2"] = `"v1"`
				eu.eventually(t, want)
				w.wait()
			})
		}
	}
}
