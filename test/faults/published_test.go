package faults_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// publications returns what was published on every stream, in order, as calls of the owner. They begin and end with their commit.
func (w *world) publications() (all []call) {
	w.insist(func(ctx context.Context, conn *pgx.Conn) error {
		all = nil
		rows, err := conn.Query(ctx, `SELECT pg_xact_commit_timestamp(xid::xid), target, term, resource, key, revision, spec FROM test.published ORDER BY version`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var m message
			c := call{Replica: "owner", Effect: true, Outcome: "published"}
			if err := rows.Scan(&c.Begin, &m.Target, &m.Term, &m.Resource, &m.Key, &m.Revision, &m.Spec); err != nil {
				return err
			}
			c.Object, c.Delete, c.Term, c.Revision, c.Versions = object{m.Target, m.Resource, m.Key}, m.Spec == nil, m.Term, m.Revision, m.versions()
			c.Begin = w.actual(c.Begin)
			c.End = c.Begin
			all = append(all, c)
		}
		return rows.Err()
	})
	w.count("publications", len(all))
	return all
}

// unpublished finds calls of agents for what was not published by then, or was replaced by what the agents of its target called for before: the calls
// for an object go through its publications, forwards only, and may leave some out. What an agent deletes was published as deleted, and
// baselessDeletes, guardBreaks and earlyCalls judge that as strictly as a call of the daemon. An agent with an older state begins
// anew. I3, I5.
func unpublished(published, calls []call, rewound func(target string, from, to time.Time) bool) (found []violation) {
	of := map[object][]call{}
	for _, p := range published {
		of[p.Object] = append(of[p.Object], p)
	}
	at := map[object]int{} // what the last call was for
	last := map[object]call{}
	for _, c := range calls {
		if before, ok := last[c.Object]; ok && rewound(c.Object.Target, before.Begin, c.Begin) {
			at[c.Object] = 0
		}
		i := at[c.Object]
		for ; i < len(of[c.Object]); i++ {
			if p := of[c.Object][i]; maps.Equal(p.Versions, c.Versions) && !p.Begin.After(c.Begin) {
				break
			}
		}
		if i == len(of[c.Object]) {
			found = append(found, violation{"I5 agent", fmt.Sprintf("%s\n  was not published by then, after what was called for by %s", c, last[c.Object]), c.Object, c.Begin})
			continue
		}
		at[c.Object], last[c.Object] = i, c
	}
	return found
}

func TestCallsForWhatWasNotPublishedAreFound(t *testing.T) {
	t.Parallel()
	published := []call{apply(11, 1), apply(21, 2), remove(31), apply(41, 4)}
	rewound := func(_ string, from, to time.Time) bool { return from.Before(at(50)) && to.After(at(50)) }
	judge := func(calls ...call) []string { return whats(unpublished(published, calls, rewound)) }
	mine := func(c call) call { return agentCall(1, c) }
	require.Empty(t, judge(mine(apply(12, 1)), mine(apply(13, 1)), mine(apply(22, 2)), mine(remove(32)), mine(remove(33)), mine(apply(42, 4))))
	require.Empty(t, judge(mine(apply(42, 1)), mine(remove(43)), mine(apply(44, 4))), "late, and not of every version")
	wrong := []string{"I5 agent"}
	require.Equal(t, wrong, judge(mine(remove(22))), "deleted before that was published")
	require.Equal(t, wrong, judge(mine(apply(42, 4)), mine(remove(43))), "deleted though it was published again")
	require.Equal(t, wrong, judge(mine(apply(42, 3))), "never published")
	require.Equal(t, wrong, judge(mine(apply(22, 2)), mine(apply(23, 1))), "an older version")
	require.Empty(t, judge(mine(apply(42, 4)), mine(apply(51, 2)), mine(apply(52, 4))), "from an older state")
	require.Equal(t, wrong, judge(mine(apply(51, 4)), mine(apply(52, 2))), "long after it")
}
