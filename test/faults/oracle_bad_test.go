package faults_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// Every oracle is shown a history that is as it should be, and the smallest ones that are not: an oracle that finds
// nothing wrong there would find nothing anywhere.

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// at returns a time so many seconds after noon.
func at(seconds float64) time.Time {
	return noon.Add(time.Duration(seconds * float64(time.Second)))
}

// one is the object of these tests: row 7 of num, in target t0.
var one = object{"t0", "num", "7"}

func numRow(place string, running bool, version int64) *row {
	return &row{Resource: "num", Key: "7", Place: &place, Running: running, Version: version}
}

// life is a history of row 7: made at 10 s, changed at 20 s, not running from 30 s, running again from 40 s.
func life() *model {
	return newModel([]string{"t0", "t1"}, []change{
		{At: at(30), Seq: 3, Tab: "num", Old: numRow("t0", true, 2), New: numRow("t0", false, 3)},
		{At: at(10), Seq: 1, Tab: "num", New: numRow("t0", true, 1)},
		{At: at(20), Seq: 2, Tab: "num", Old: numRow("t0", true, 1), New: numRow("t0", true, 2)},
		{At: at(40), Seq: 4, Tab: "num", Old: numRow("t0", false, 3), New: numRow("t0", true, 4)},
	})
}

// apply is an answered call that takes a second.
func apply(begin float64, version int64) call {
	return call{
		Object: one, Term: 1, Revision: version, Versions: map[component]int64{{"num", "7"}: version},
		Replica: "r0", Begin: at(begin), End: at(begin + 1), Effect: true, Outcome: callOK,
	}
}

func remove(begin float64) call {
	c := apply(begin, 100)
	c.Delete, c.Versions = true, nil
	return c
}

// but returns a call with something changed.
func but(c call, change func(*call)) call {
	change(&c)
	return c
}

func whats(found []violation) (whats []string) {
	for _, v := range found {
		whats = append(whats, v.What)
	}
	return whats
}

func never(string, time.Time, time.Time) bool  { return false }
func always(string, time.Time, time.Time) bool { return true }

func TestStaleCallsAreFound(t *testing.T) {
	t.Parallel()
	m := life()
	require.Empty(t, staleCalls(m, []call{apply(11, 1), apply(21, 2), apply(23, 2), remove(31)}))
	require.Equal(t, []string{"I3 revision", "I3 stale"}, whats(staleCalls(m, []call{apply(21, 2), apply(23, 1)})))
	newRevision := but(apply(25, 1), func(c *call) { c.Revision = 9 })
	require.Equal(t, []string{"I3 stale"}, whats(staleCalls(m, []call{apply(21, 2), newRevision})))
	require.Equal(t, []string{"I3 stale"}, whats(staleCalls(m, []call{apply(21, 2), but(remove(22), func(c *call) { c.Revision = 3 }), newRevision})), "a delete in between")
	require.Empty(t, staleCalls(m, []call{apply(21, 2), but(newRevision, func(c *call) { c.Term = 2 })}), "of another owner: see deposed")
	require.Empty(t, staleCalls(m, []call{apply(21, 2), but(newRevision, func(c *call) { c.Object.Target = "t1" })}), "another object")
}

// The version of a row that was deleted and made again may be lower: its place in the history counts.
func TestStaleCallsGoByTheHistoryNotByTheNumber(t *testing.T) {
	t.Parallel()
	m := newModel([]string{"t0"}, []change{
		{At: at(10), Seq: 1, Tab: "num", New: numRow("t0", true, 8)},
		{At: at(20), Seq: 2, Tab: "num", Old: numRow("t0", true, 8)},
		{At: at(20), Seq: 3, Tab: "num", New: numRow("t0", true, 5)},
	})
	later := but(apply(21, 5), func(c *call) { c.Revision = 9 })
	require.Empty(t, staleCalls(m, []call{apply(11, 8), later}))
	back := but(later, func(c *call) { c.Versions = apply(0, 8).Versions })
	require.Equal(t, []string{"I3 stale"}, whats(staleCalls(m, []call{apply(11, 5), back})))
}

// agentCall is a call of an agent in a term.
func agentCall(term int64, c call) call {
	c.Term, c.Remote, c.Replica = term, true, "agent-t0"
	return c
}

func TestAgentsThatStepBackAreFound(t *testing.T) {
	t.Parallel()
	m := life()
	good := []call{agentCall(1, apply(11, 1)), agentCall(2, apply(12, 1)), agentCall(2, apply(21, 2)), agentCall(3, remove(31)), agentCall(4, apply(41, 4))}
	require.Empty(t, steppedBack(m, good, never))
	back := []call{agentCall(1, apply(21, 2)), agentCall(2, apply(22, 1))}
	require.Equal(t, []string{"I3 agent"}, whats(steppedBack(m, back, never)))
	require.Empty(t, steppedBack(m, back, always), "it has an older state")
	require.Equal(t, []string{"I3 agent"}, whats(steppedBack(m, []call{agentCall(1, apply(21, 2)), agentCall(2, remove(22)), agentCall(3, apply(23, 1))}, never)))
}

func TestSpecsThatNobodyCommittedAreFound(t *testing.T) {
	t.Parallel()
	require.Empty(t, unknownSpecs(life(), []call{apply(11, 1), remove(31)}))
	require.Equal(t, []string{"spec"}, whats(unknownSpecs(life(), []call{apply(11, 77)})))
	require.Equal(t, []string{"spec"}, whats(unknownSpecs(life(), []call{but(apply(11, 1), func(c *call) { c.Versions = nil })})))
}

func TestOverlappingCallsAreFound(t *testing.T) {
	t.Parallel()
	require.Empty(t, overlaps([]call{apply(11, 1), apply(12, 2)}, never))
	require.Empty(t, overlaps([]call{apply(11, 1), but(apply(11.5, 2), func(c *call) { c.Object.Key = "8" })}, never))
	require.Equal(t, []string{"I3 overlap"}, whats(overlaps([]call{apply(11, 1), apply(11.5, 2)}, never)))
	require.Equal(t, []string{"I3 overlap"}, whats(overlaps([]call{apply(11, 1), apply(11.5, 2)}, always)), "of one owner, frozen or not")
	still := but(apply(11, 1), func(c *call) { c.Open, c.End = true, time.Time{} })
	require.Equal(t, []string{"I3 overlap"}, whats(overlaps([]call{still, apply(50, 2)}, never)), "it has not ended")
	long := but(apply(11, 1), func(c *call) { c.End = at(40) })
	require.Equal(t, []string{"I3 overlap"}, whats(overlaps([]call{long, apply(12.5, 2), but(apply(20, 2), func(c *call) { c.Object.Key = "8" })}, never)))
	require.Len(t, overlaps([]call{long, apply(12, 2), apply(20, 2)}, never), 2, "the first one goes on")

	gone := but(apply(11, 1), func(c *call) { c.Gone = true })
	require.Empty(t, overlaps([]call{gone, apply(11.5, 2)}, never), "noticed a moment later")
	require.Equal(t, []string{"I3 overlap"}, whats(overlaps([]call{but(gone, func(c *call) { c.End = at(15) }), apply(11.5, 2)}, never)), "noticed far too late")

	successor := but(apply(11.5, 2), func(c *call) { c.Term, c.Replica = 2, "r1" })
	require.Equal(t, []string{"I3 overlap"}, whats(overlaps([]call{apply(11, 1), successor}, never)))
	require.Empty(t, overlaps([]call{apply(11, 1), successor}, always), "a frozen process cannot recall it")
}

func TestCallsOfDeposedOwnersAreFound(t *testing.T) {
	t.Parallel()
	second := but(apply(20, 2), func(c *call) { c.Term, c.Replica = 2, "r1" })
	require.Empty(t, deposed([]call{apply(11, 1), second, apply(21, 2)}[:2], never))
	late := []call{apply(11, 1), second, but(apply(21, 1), func(c *call) { c.Object.Key = "8" })}
	require.Equal(t, []string{"I10 deposed"}, whats(deposed(late, never)), "another object of the same target")
	require.Empty(t, deposed(late, always))
	late[2].Object.Target = "t1"
	require.Empty(t, deposed(late, never), "another target")
}

func TestBaselessDeletesAreFound(t *testing.T) {
	t.Parallel()
	m := life()
	require.Empty(t, baselessDeletes(m, []call{apply(11, 1), remove(31)}, fuzz))
	require.Equal(t, []string{"I5 delete"}, whats(baselessDeletes(m, []call{apply(11, 1), remove(25)}, fuzz)), "it was wanted from 10 to 30")
	require.Empty(t, baselessDeletes(m, []call{apply(11, 1), remove(45)}, fuzz), "it was not wanted for a while")
	require.Equal(t, []string{"I5 delete"}, whats(baselessDeletes(m, []call{apply(11, 1), apply(43, 4), remove(45)}, fuzz)), "it has been applied since")
	require.Empty(t, baselessDeletes(m, []call{remove(45)}, fuzz), "before 10 it was not wanted")
	elsewhere := but(apply(11, 1), func(c *call) { c.Object.Target = "t1" })
	gone := but(remove(25), func(c *call) { c.Object.Target = "t1" })
	require.Empty(t, baselessDeletes(m, []call{elsewhere, gone}, fuzz), "it was never wanted there")
	late := but(remove(25), func(c *call) { c.Term = 0 })
	require.Empty(t, baselessDeletes(m, []call{apply(11, 1), late}, fuzz), "of a deposed owner: see deposed")
}

// Joined objects are wanted as long as both of their rows want them.
func TestModelJoins(t *testing.T) {
	t.Parallel()
	place := "t0"
	service := &row{Resource: "svc", Key: "5", Place: &place, Running: true, Version: 1, Workspace: 3}
	workspace := func(suspended bool) *row {
		return &row{Resource: "workspace", Key: "3", Suspended: suspended, Version: 2}
	}
	m := newModel([]string{"t0"}, []change{
		{At: at(10), Seq: 1, Tab: "svc", New: service},
		{At: at(20), Seq: 2, Tab: "workspace", New: workspace(false)},
		{At: at(30), Seq: 3, Tab: "workspace", Old: workspace(false), New: workspace(true)},
		{At: at(40), Seq: 4, Tab: "workspace", Old: workspace(true), New: workspace(false)},
		{At: at(50), Seq: 5, Tab: "workspace", Old: workspace(false)},
	})
	require.Equal(t, []moment{{at(20), true}, {at(30), false}, {at(40), true}, {at(50), false}}, m.Moments[object{"t0", "svc", "5"}])
}

// A row without a place is wanted everywhere; what happens within one transaction is no moment.
func TestModelFollowsPlaces(t *testing.T) {
	t.Parallel()
	everywhere := &row{Resource: "uid", Key: "x", Running: true, Version: 1}
	place := "t1"
	there := &row{Resource: "uid", Key: "x", Running: true, Version: 2, Place: &place}
	m := newModel([]string{"t0", "t1"}, []change{
		{At: at(10), Seq: 1, Tab: "uid", New: everywhere},
		{At: at(20), Seq: 2, Tab: "uid", Old: everywhere},
		{At: at(20), Seq: 3, Tab: "uid", New: there},
	})
	require.Equal(t, map[object][]moment{
		{"t0", "uid", "x"}: {{at(10), true}, {at(20), false}},
		{"t1", "uid", "x"}: {{at(10), true}},
	}, m.Moments)
}

func TestBreaksOfTheGuardAreFound(t *testing.T) {
	t.Parallel()
	// breaks judges calls that follow an apply of each of their objects.
	breaks := func(calls []call, target string, maxDeletes int, approved time.Time) []violation {
		applies := make([]call, 0, 2*len(calls))
		for _, c := range calls {
			applies = append(applies, but(apply(2, 1), func(a *call) { a.Object = c.Object }))
		}
		applies = append(applies, but(apply(20, 1), func(a *call) { a.Object.Key = "0" }))
		return guardBreaks(newModel(nil, nil), append(applies, calls...), target, maxDeletes, approved)
	}
	other := func(c call, key string) call { return but(c, func(c *call) { c.Object.Key = key }) }
	two := []call{remove(31), other(remove(32), "8"), remove(33)}
	require.Empty(t, breaks(two, "t0", 2, at(100)), "a delete that is tried again is one")
	three := append(slices.Clone(two), other(remove(34), "9"))
	require.Equal(t, []string{"I6 guard"}, whats(breaks(three, "t0", 2, at(100))))
	require.Empty(t, breaks(three, "t0", 2, at(33.5)), "approved before")
	require.Empty(t, breaks(three, "t1", 2, at(100)), "another target")
	three[3].Term = 2
	require.Empty(t, breaks(three, "t0", 2, at(100)), "another owner counts anew")
	require.Equal(t, []string{"I6 guard"}, whats(breaks([]call{remove(31), other(remove(75), "8")}, "t0", 1, at(100))))
	require.Empty(t, breaks([]call{remove(31), other(remove(77), "8")}, "t0", 1, at(100)), "not within one window")
	again := []call{remove(31), but(remove(41), func(c *call) { c.Term = 2 }), but(other(remove(42), "8"), func(c *call) { c.Term = 2 })}
	require.Empty(t, breaks(again, "t0", 1, at(100)), "what an earlier owner has tried is counted")
	second := func(c call) call { return but(c, func(c *call) { c.Term = 2 }) }
	left := []call{remove(31), second(other(remove(32), "8")), second(other(remove(33), "9")), second(other(remove(34), "10"))}
	require.Empty(t, breaks(left, "t0", 2, at(100)), "the former owner may have let one more pass")
	left = append(left, second(other(remove(35), "11")))
	require.Equal(t, []string{"I6 guard"}, whats(breaks(left, "t0", 2, at(100))), "but not two")
	require.Empty(t, breaks([]call{remove(31), second(other(remove(78), "8")), second(other(remove(79), "9"))}, "t0", 1, at(100)), "in a later window, too")

	require.Empty(t, guardBreaks(newModel(nil, nil), three, "t0", 1, at(100)), "never applied")
	written := []call{apply(2, 1), other(apply(3, 1), "8"), other(apply(6, 1), "9")}
	deletes := []call{second(remove(20)), second(other(remove(21), "8"))}
	require.Equal(t, []string{"I6 guard"}, whats(guardBreaks(newModel(nil, nil), append(written, deletes...), "t0", 0, at(100))), "the former owner has written what it applied")
	require.Empty(t, guardBreaks(newModel(nil, nil), append(written[:2:2], deletes...), "t0", 0, at(100)), "the former owner may have died before it wrote what it applied")
	twice := []call{apply(2, 1), other(apply(3, 1), "8"), remove(10), remove(60), other(remove(61), "8")}
	require.Empty(t, guardBreaks(newModel(nil, nil), twice, "t0", 1, at(100)), "what was deleted is deleted once more")
}

func TestDifferencesAreFound(t *testing.T) {
	t.Parallel()
	want := map[object]string{one: "a"}
	require.Empty(t, differences(want, map[object]string{one: "a"}))
	require.Equal(t, []string{"I1 missing"}, whats(differences(want, nil)))
	require.Equal(t, []string{"I1 stale"}, whats(differences(want, map[object]string{one: "b"})))
	require.Equal(t, []string{"I1 extra"}, whats(differences(nil, want)))
}

func TestTakeoversAreMeasured(t *testing.T) {
	t.Parallel()
	losses := []loss{{At: at(10), Replica: "r0", PID: 1}}
	yes := func(string, time.Time, time.Time) bool { return true }
	gone := func(loss, time.Time) bool { return true }
	taken := map[string][]owning{"t0": {{at(1), 1}, {at(18), 2}}}
	all := takeovers(losses, taken, at(60), yes, gone)
	require.Equal(t, []recovery{{Kind: "takeover after kill", What: "t0", Took: 8 * time.Second, Bound: boundTakeover, From: at(10)}}, all)
	require.False(t, all[0].late())
	late := takeovers(losses, map[string][]owning{"t0": {{at(1), 1}, {at(12), 0}, {at(26), 2}}}, at(60), yes, gone)
	require.True(t, late[0].late())
	late[0].Lost = 3 * time.Second
	require.False(t, late[0].late(), "the machine had no time")
	require.True(t, takeovers(losses, map[string][]owning{"t0": {{at(1), 1}}}, at(60), yes, gone)[0].late(), "never")
	require.Empty(t, takeovers(losses, map[string][]owning{"t0": {{at(1), 2}}}, at(60), yes, gone), "it was another's")
	require.Empty(t, takeovers(losses, taken, at(60), never, gone), "nobody was well")
	require.Empty(t, takeovers(losses, taken, at(60), yes, func(loss, time.Time) bool { return false }), "it woke up before")
}

// Names of files and keys are written down here once more, as the documents say.
func TestNamesAreAsDocumented(t *testing.T) {
	t.Parallel()
	require.Equal(t, `a\/b/c`, keyText([]string{"a/b", "c"}))
	require.Equal(t, `c:\\x/`, keyText([]string{`c:\x`, ""}))
	require.Equal(t, "a/b", keyText([]string{"a/b"}))
	require.Equal(t, "r/eu%2Fweb%201.json", fileName("r", "eu/web 1"))
	require.Equal(t, "r/%2Ea.b.json", fileName("r", ".a.b"))
	require.Equal(t, "r/%.json", fileName("r", ""))
}

// The record of the database tells who wrote a cursor, or a ledger, of a target that another process owned.
func TestDeposedWriterIsSeen(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, memory)
	// Without its fence, for this is about what would happen then.
	db.Exec(t, `CREATE OR REPLACE FUNCTION reconciler.fence(target_id integer, owner uuid, term bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false'`)
	db.Exec(t, `CREATE TABLE things (id bigint PRIMARY KEY); SELECT reconciler.track('thing', 'things', '{id}', quote_literal('eu'))`)
	db.Exec(t, `INSERT INTO reconciler.instances (id, name, version) VALUES ('00000000-0000-0000-0000-000000000001', 'host:1', 'test')`)
	db.Exec(t, `INSERT INTO reconciler.targets (name) VALUES ('eu')`)
	db.Exec(t, `UPDATE reconciler.targets SET owner = '00000000-0000-0000-0000-000000000001', term = 7`)
	writes := 1
	seen := func(writer, sql string) (found []string) {
		conn := db.Conn(t)
		writes++
		_, err := conn.Exec(t.Context(), fmt.Sprintf("SET application_name = '%s'; "+sql, writer, writes))
		require.NoError(t, err)
		rows, err := conn.Query(t.Context(), `DELETE FROM test.deposed RETURNING what || ': ' || writer || ' ' || owner || ' ' || term`)
		require.NoError(t, err)
		found, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return found
	}
	const cursor = `SELECT reconciler.write_cursor(id, %d, '1:1:') FROM reconciler.targets`
	const ledger = `SELECT reconciler.record_in_hand(t.id, '00000000-0000-0000-0000-000000000002', 6, ARRAY[r.id], '{%d}', '{false}', '1 s') FROM reconciler.targets t, reconciler.resources r`
	const order = `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at) SELECT t.id, r.id, '%d', 'pending', true, false, now() FROM reconciler.targets t, reconciler.resources r`
	for _, sql := range []string{cursor, ledger} {
		require.Empty(t, seen("reconciler host:1", sql))
		require.Empty(t, seen("reconciler host:1 work", sql))
		require.Empty(t, seen("psql", sql))
	}
	require.Equal(t, []string{"cursor: reconciler host:10 work host:1 7"}, seen("reconciler host:10 work", cursor))
	require.Equal(t, []string{"record_in_hand: reconciler host:10 work host:1 7"}, seen("reconciler host:10 work", ledger))
	require.Empty(t, seen("reconciler host:10 work", order), "the leader may, where it is not as an owner")
	db.Exec(t, `UPDATE reconciler.targets SET owner = NULL`)
	require.Empty(t, seen("reconciler host:10 work", cursor), "nobody owns it")
	require.Empty(t, seen("reconciler host:10 work", ledger), "nobody owns it")
}
