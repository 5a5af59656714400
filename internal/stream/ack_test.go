package stream_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/stream"
)

// acked is a bed whose target waits for reports.
type acked struct {
	*bed

	driver driver.Driver
	seq    int64
}

func setupAck(t *testing.T) *acked {
	t.Helper()
	b := setup(t)
	for _, resource := range []string{"app", "apps", "jobs"} { // a report names resources that are tracked
		b.db.Exec(t, `CREATE TABLE `+resource+`_rows (id int PRIMARY KEY, region text NOT NULL); SELECT reconciler.track('`+resource+`', '`+resource+`_rows', '{id}', 'region')`)
	}
	d, err := stream.Kind().Open(target, driver.Options{"ack": true}, driver.Env{})
	require.NoError(t, err)
	b.publisher, _ = stream.Of(d)
	b.own(1)
	return &acked{bed: b, driver: d}
}

// report is of one object, with the version that is published and some more.
func (b *acked) report(resource, key, state, message string, later int64) {
	b.t.Helper()
	b.seq++
	var problem string
	b.query(`SELECT coalesce(r.problem, '') FROM (SELECT max(version) AS version FROM reconciler.published WHERE resource = $1 AND key = $2) AS p
		CROSS JOIN LATERAL reconciler.report($3, 'session', $4, false, 0, ARRAY[$1], ARRAY[$2], ARRAY[p.version + $5], ARRAY[$6], ARRAY[$7], '{""}', '{""}') AS r`,
		&problem, resource, key, b.target, b.seq, later, state, message)
	require.Empty(b.t, problem)
}

// inventory is a complete report of nothing, of a client that has read the stream up to a version.
func (b *acked) inventory(version int64) {
	b.t.Helper()
	b.seq++
	b.db.Exec(b.t, `SELECT reconciler.report($1, 'session', $2, true, $3, '{}', '{}', '{}', '{}', '{}', '{}', '{}')`, b.target, b.seq, version)
}

func (b *acked) head() (version int64) {
	b.t.Helper()
	b.query(`SELECT max(version) FROM reconciler.published`, &version)
	return version
}

func waiting(reason string) driver.Outcome { return driver.Waiting(250*time.Millisecond, reason) }

// settled is an outcome without what depends on the time.
func settled(o driver.Outcome) driver.Outcome {
	o.After = 0
	return o
}

func TestAckConformance(t *testing.T) {
	t.Parallel()
	drivertest.ExerciseWaiting(t, func(t *testing.T) drivertest.Fixture {
		b := setupAck(t)
		return drivertest.Fixture{
			Driver: b.driver, Target: target,
			Read: func(t *testing.T, resource, key string) (spec string, ok bool) {
				err := b.db.Pool.QueryRow(t.Context(), `SELECT spec::text FROM reconciler.published WHERE resource = $1 AND key = $2 AND spec IS NOT NULL`, resource, key).Scan(&spec)
				if errors.Is(err, pgx.ErrNoRows) {
					return "", false
				}
				require.NoError(t, err)
				return spec, true
			},
			Confirm: func(t *testing.T, resource, key string) {
				var state string
				b.query(`SELECT CASE WHEN spec IS NULL THEN 'absent' ELSE 'applied' END FROM reconciler.published WHERE resource = $1 AND key = $2`, &state, resource, key)
				b.report(resource, key, state, "", 0)
			},
		}
	})
}

// What a client reports of the version that is published decides, and nothing that it reported of an older one.
func TestAckFollowsReports(t *testing.T) {
	t.Parallel()
	b := setupAck(t)
	apply := func(spec string) driver.Outcome { return settled(b.driver.Apply(t.Context(), b.object("a", spec))) }
	require.Equal(t, settled(waiting("no client has reported it")), apply(`1`))
	b.report("app", "a", "progressing", "", 0)
	require.Equal(t, settled(waiting("the client reports it progressing")), apply(`1`))
	b.report("app", "a", "progressing", "pulling the image", 0)
	require.Equal(t, settled(waiting("pulling the image")), apply(`1`))
	b.report("app", "a", "failed", "no such image", 0)
	require.Equal(t, driver.Backoff(errors.New("no such image")), apply(`1`))
	require.Equal(t, settled(waiting("no client has reported it")), apply(`2`))
	b.report("app", "a", "absent", "", 0)
	require.Equal(t, settled(waiting("the client reports it absent")), apply(`2`))
	b.report("app", "a", "applied", "", 0)
	require.Equal(t, driver.Done(), apply(`2`))
}

// A client that finds an object missing from a snapshot reports it absent with the version of the snapshot's end. What it has reported of
// the object before that counts for nothing when it is back.
func TestAckTakesAbsenceWithALaterVersion(t *testing.T) {
	t.Parallel()
	b := setupAck(t)
	b.driver.Apply(t.Context(), b.object("a", `1`))
	require.Equal(t, settled(waiting("no client has reported it")), settled(b.driver.Delete(t.Context(), b.ref("a"))))
	b.driver.Apply(t.Context(), b.object("b", `1`))
	b.report("app", "a", "absent", "", 1)
	require.Equal(t, driver.Done(), b.driver.Delete(t.Context(), b.ref("a")))
	require.Equal(t, settled(waiting("no client has reported it")), settled(b.driver.Apply(t.Context(), b.object("a", `2`))))
}

// A complete report confirms deletes of what it does not name, up to the version that it goes to.
func TestAckTakesDeletesFromACompleteReport(t *testing.T) {
	t.Parallel()
	b := setupAck(t)
	b.driver.Apply(t.Context(), b.object("a", `1`))
	old := b.head()
	b.report("app", "a", "applied", "", 0)
	require.Equal(t, settled(waiting("no client has reported it")), settled(b.driver.Delete(t.Context(), b.ref("a"))))
	for _, version := range []int64{0, old} {
		b.inventory(version)
		require.Equal(t, driver.VerdictWaiting, b.driver.Delete(t.Context(), b.ref("a")).Verdict, version)
	}
	b.inventory(b.head())
	require.Equal(t, driver.Done(), b.driver.Delete(t.Context(), b.ref("a")))
}

// Nobody can report an object whose tombstone is gone with the stream's history.
func TestAckEndsWithTheHistory(t *testing.T) {
	t.Parallel()
	b := setupAck(t)
	b.driver.Apply(t.Context(), b.object("a", `1`))
	require.Equal(t, driver.VerdictWaiting, b.driver.Delete(t.Context(), b.ref("a")).Verdict)
	b.db.Exec(t, `UPDATE reconciler.published SET at = at - interval '2 days'; SELECT reconciler.forget_tombstones(10)`)
	require.Equal(t, driver.Done(), b.driver.Delete(t.Context(), b.ref("a")))
}

// An object is looked at again after seven times as long as it is published already.
func TestAckPausesGrow(t *testing.T) {
	t.Parallel()
	b := setupAck(t)
	for published, pause := range map[string]time.Duration{"1 minute": 7 * time.Minute, "1 day": 10 * time.Minute, "-1 day": 250 * time.Millisecond} {
		b.driver.Apply(t.Context(), b.object("a", `1`))
		b.db.Exec(t, `UPDATE reconciler.published SET at = clock_timestamp() - $1::interval`, published)
		after := b.driver.Apply(t.Context(), b.object("a", `1`)).After
		require.GreaterOrEqual(t, after, pause, published)
		if pause != 7*time.Minute {
			require.Equal(t, pause, after, published)
		}
	}
}

func TestAckReportsHealth(t *testing.T) {
	t.Parallel()
	b := setupAck(t)
	health := b.driver.(driver.HealthReporter).Health
	require.NoError(t, health(t.Context()))
	b.driver.Apply(t.Context(), b.object("a", `1`))
	b.report("app", "a", "applied", "", 0)
	b.db.Exec(t, `UPDATE reconciler.observations SET healthy = false`)
	require.EqualError(t, health(t.Context()), "the client reports app a as not healthy")
	b.db.Exec(t, `UPDATE reconciler.observations SET message = '2 of 3 replicas are ready'`)
	require.EqualError(t, health(t.Context()), "app a: 2 of 3 replicas are ready")
	b.db.Exec(t, `UPDATE reconciler.observations SET healthy = true`)
	require.NoError(t, health(t.Context()))
	b.db.Exec(t, `SELECT reconciler.report($1, 'agent', 1, false, 0, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{"healthy": false}')`, b.target)
	require.EqualError(t, health(t.Context()), "the client reports the far side as not healthy")
	b.db.Exec(t, `SELECT reconciler.report($1, 'agent', 2, false, 0, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{"healthy": false, "trouble": "disk full"}')`, b.target)
	require.EqualError(t, health(t.Context()), "disk full")
	b.db.Exec(t, `SELECT reconciler.report($1, 'agent', 3, false, 0, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{"trouble": "disk full"}')`, b.target)
	require.NoError(t, health(t.Context()), "trouble alone is not ill health")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, health(ended))
	_, isReporter := any(setup(t).publisher).(driver.HealthReporter)
	require.False(t, isReporter, "without ack there is nothing to ask")
}
