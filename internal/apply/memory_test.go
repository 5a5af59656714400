package apply

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const ledgerMemory = `SELECT string_agg(concat_ws(' ', key, coalesce(encode(memory, 'escape'), 'nothing')), ', ' ORDER BY key) FROM reconciler.ledger`

// Results with a memory and results without one go together, whatever their order. What has none keeps what there is.
func TestMemoriesAreRecorded(t *testing.T) {
	t.Parallel()
	d := newLedgerDB(t)
	settle := func(memories map[string][]byte, generation int32) {
		params := d.params()
		for _, key := range []string{"a", "b", "c", "d"} {
			rec := appliedRecord
			rec.memory, rec.generation = memories[key], generation
			addRecord(&params, result{item: &Item{ObjectID: ObjectID{ResourceID: d.resource, Key: key}}, record: &rec})
		}
		d.write(t, params)
	}
	settle(nil, 0)
	require.Equal(t, "a nothing, b nothing, c nothing, d nothing", d.line(t, ledgerMemory))
	settle(map[string][]byte{"b": []byte("first"), "d": {}}, 0)
	require.Equal(t, "a nothing, b first, c nothing, d ", d.line(t, ledgerMemory), "an empty one is one")
	settle(map[string][]byte{"a": []byte("second")}, 0)
	require.Equal(t, "a second, b first, c nothing, d ", d.line(t, ledgerMemory))

	d.Exec(t, `UPDATE reconciler.ledger SET state = 'pending', next_attempt_at = clock_timestamp() + interval '1 hour', generation = 1`) // as retry() does
	settle(map[string][]byte{"c": []byte("of before")}, 0)
	require.Equal(t, "a second, b first, c of before, d ", d.line(t, ledgerMemory))
	require.Equal(t, "4", d.line(t, `SELECT count(*)::text FROM reconciler.ledger WHERE state = 'pending' AND next_attempt_at <= clock_timestamp()`))
	d.Exec(t, `UPDATE reconciler.ledger SET state = 'held', held_by = 'pause', next_attempt_at = NULL, generation = 2 WHERE key = 'a'`)
	settle(map[string][]byte{"a": []byte("of before")}, 0)
	require.Equal(t, "held of before", d.line(t, `SELECT state || ' ' || convert_from(memory, 'UTF8') FROM reconciler.ledger WHERE key = 'a' AND next_attempt_at IS NULL`), "what is held stays held")
}

// A result without a memory costs nothing for it, and what the ledger has is not written again.
func TestOnlyMemoryThatIsNewIsWritten(t *testing.T) {
	t.Parallel()
	require.Equal(t, fmt.Sprintf(`(1,"a",applied,true,true,5,5,\\x%s,,0,,,false,false,-1,true,,0,)`, specHash), result{item: liveItem("a"), record: &appliedRecord}.row())

	l := testLook(wantedRow(), "applied, other", "plain")
	for _, c := range []struct{ has, now, written []byte }{
		{nil, nil, nil},
		{nil, []byte{}, []byte{}},
		{[]byte("a"), nil, nil},
		{[]byte("a"), []byte("a"), nil},
		{[]byte("a"), []byte("b"), []byte("b")},
		{[]byte("a"), []byte{}, []byte{}},
		{[]byte{}, []byte{}, nil},
	} {
		l.row.Ledger.Memory = c.has
		require.Equal(t, c.written, l.outcome(actApply, driver.Done().Remember(c.now), testBackoff).memory, "%q, %q", c.has, c.now)
	}
}

// One write has a bounded number of bytes, however many results have come together.
func TestOneWriteHasABoundedNumberOfBytes(t *testing.T) {
	t.Parallel()
	o, _ := testOwner(t, calls(nil), nil)
	rec := appliedRecord
	rec.memory = make([]byte, driver.MemoryMost)
	for range 100 {
		o.settler.settled <- result{item: liveItem("a"), record: &rec}
	}
	batch, open := o.settler.fill(nil, true)
	require.True(t, open)
	require.Len(t, batch, settleBytes/driver.MemoryMost)
}
