package faults_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// setUp makes what the plan has: tables, as their owner, and what stands between the processes and the server.
func (w *world) setUp() {
	conn := w.db.Conn(w.t)
	exec := func(sql string) {
		_, err := conn.Exec(w.t.Context(), sql)
		require.NoError(w.t, err, sql)
	}
	if w.plan.has(faultSecurity) { // a superuser's tables, and views, show all rows to their owner
		w.tablesOf = w.db.Role(w.t, "owner", "")
		role := pgx.Identifier{w.tablesOf}.Sanitize()
		exec(fmt.Sprintf(`GRANT CREATE ON DATABASE %s TO %s; GRANT CREATE ON SCHEMA public TO %[2]s; GRANT ALL ON SCHEMA test TO %[2]s;
			GRANT ALL ON ALL TABLES IN SCHEMA test TO %[2]s; GRANT ALL ON ALL SEQUENCES IN SCHEMA test TO %[2]s;
			SELECT reconciler.grant('%s', 'definer'); SET ROLE %[2]s`, w.db.Name, role, w.tablesOf))
	}
	for _, name := range w.plan.Resources {
		x := resources[name]
		exec(x.setup)
		if x.target != "" {
			exec("BEGIN; " + x.track(0) + "; COMMIT")
		}
	}
	if w.plan.extra() {
		exec(extra.setup)
		exec("BEGIN; " + extra.track(0) + "; COMMIT")
	}
	exec("RESET ROLE")
	if w.plan.has(faultRows) {
		exec(loose)
	}
	if w.plan.has(faultPooler) {
		w.pooler = w.db.Pooler(w.t, pgtest.PoolerAdmin)
	}
}

// mildPool is the tester's own, which minds no settings of the database.
func (w *world) mildPool() *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(w.db.URL)
	require.NoError(w.t, err)
	maps.Copy(config.ConnConfig.RuntimeParams, mild)
	config.MaxConns = 10
	config.BeforeConnect = func(_ context.Context, to *pgx.ConnConfig) error {
		now, err := pgx.ParseConfig(w.url())
		if err == nil {
			to.Host, to.Port, to.Fallbacks = now.Host, now.Port, now.Fallbacks
		}
		return err
	}
	pool, err := pgxpool.NewWithConfig(w.t.Context(), config)
	require.NoError(w.t, err)
	w.t.Cleanup(pool.Close)
	return pool
}

// extra says whether the world has the resource that novelties write to.
func (p *plan) extra() bool {
	return p.has(faultTruncate) || p.has(faultRedefine) || p.has(faultUntrack) || p.has(faultSecurity)
}

// wantedFrom are the resources whose rows say what targets must have.
func (p *plan) wantedFrom() []string {
	if p.extra() {
		return append(slices.Clone(p.Resources), extra.name)
	}
	return p.Resources
}

// asOwner begins what only the owner of the tables may do.
func (w *world) asOwner() string {
	if w.tablesOf == "" {
		return ""
	}
	return "SET LOCAL ROLE " + pgx.Identifier{w.tablesOf}.Sanitize() + "; "
}

// unwatched are resources whose rows the tester's memory does not have; what is left of them in the end shows all the same.
var unwatched = []string{"loose", "fleeting", "left_open"}

// judged returns the calls that the oracles of the model look at: those since the tester's memory begins, without those of
// what it does not know, and of agents whose state may come from a history that was undone.
func (w *world) judged(calls []call) []call {
	return slices.DeleteFunc(slices.Clone(calls), func(c call) bool {
		return !w.isJudged(c) || c.Remote && !w.judgeFrom.IsZero() || slices.Contains(unwatched, c.Object.Resource) || c.Delete && c.Object.Target == w.drained
	})
}

// mayRemain takes out of what targets that cannot be listed have what may be there: objects of rows that an undone history had, and
// those that untrack() left there, unless they were called for after the resource was tracked again.
func (w *world) mayRemain(want, have map[object]string) {
	if w.judgeFrom.IsZero() && w.keptUntil.IsZero() {
		return
	}
	last := map[object]call{}
	for _, c := range w.calls() {
		last[c.Object] = c
	}
	for o := range have {
		if _, wanted := want[o]; wanted {
			continue
		}
		switch {
		case !w.isJudged(last[o]):
			w.count("objects of an undone history", 1)
			delete(have, o)
		case o.Resource == extra.name && last[o].Begin.Before(w.keptUntil):
			w.count("objects that untrack() kept", 1)
			delete(have, o)
		}
	}
}

// inOrder says whether users and neighbours behaved between two times, and a little before.
func (w *world) inOrder(from, to time.Time) bool {
	return w.timeline.healthy(partOrder, from.Add(-10*time.Second), to)
}
