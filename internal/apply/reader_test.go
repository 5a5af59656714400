package apply

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/outbox"
)

// C33: a batch that a crashed owner may have begun is worked on again in full, also when newer revisions have made it
// longer since.
func TestBatchThatACrashedOwnerMayHaveBegunIsReplayed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replay, from, to int64
		want             bool
	}{
		"NobodyCrashed":        {0, 5, 6, false},
		"ReadByTheFormerOwner": {7, 5, 6, true},
		"GrownSince":           {7, 5, 9, true},
		"RecordedUpToTheEnd":   {7, 7, 9, false},
		"Newer":                {7, 8, 9, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, _ := testOwner(t, calls(nil), nil)
			o.reader.replay = c.replay
			require.Equal(t, c.want, o.reader.replays(cursor{base: outbox.Tick{Revision: c.from}, batch: outbox.Tick{Revision: c.to}}))
		})
	}
}

// What few pages of a batch have for a target waits for the next ones, not for long.
func TestFindsAreEnough(t *testing.T) {
	t.Parallel()
	f := newFinds()
	require.False(t, f.enough(f.since.Add(gatherFor-1)))
	require.True(t, f.enough(f.since.Add(gatherFor)))
	f.items = make([]*Item, gatherRows-1)
	require.False(t, f.enough(f.since))
	f.items = make([]*Item, gatherRows)
	require.True(t, f.enough(f.since))
}
