package cli

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/sync"
)

// Every finding of a scan against every way in which row and ledger may stand by the time that it is looked at.
func TestJudge(t *testing.T) {
	t.Parallel()
	hash := driver.HashSpec([]byte(`1`))
	other := driver.HashSpec([]byte(`2`))
	row := func(wanted bool, ledger *desired.Entry) desired.Row {
		return desired.Row{Wanted: wanted, Hash: hash, Ledger: ledger}
	}
	same := &desired.Entry{State: desired.Applied, AppliedHash: hash[:]}
	changed := &desired.Entry{State: desired.Applied, AppliedHash: other[:]}
	stuck := &desired.Entry{State: desired.Blocked, AppliedHash: other[:]}
	kinds := []sync.Kind{sync.KindStale, sync.KindTombstone, sync.KindMissing, sync.KindDifferent, sync.KindOrphan, sync.KindCheck}
	for name, test := range map[string]struct {
		row  desired.Row
		want []string // in the order of kinds
	}{
		"WantedAndApplied":   {row(true, same), []string{"", "", DiffMissing, DiffDifferent, "", ""}},
		"WantedAndChanged":   {row(true, changed), []string{DiffDifferent, "", "", "", "", ""}},
		"WantedAndUnknown":   {row(true, nil), []string{DiffMissing, DiffMissing, DiffMissing, DiffMissing, "", DiffMissing}},
		"WantedAndStuck":     {row(true, stuck), []string{"", "", "", "", "", ""}},
		"UnwantedAndApplied": {row(false, same), []string{"", DiffStale, "", "", "", ""}},
		"UnwantedAndUnknown": {row(false, nil), []string{"", "", "", "", DiffOrphan, ""}},
		"Unreadable":         {desired.Row{Err: errors.New("division by zero")}, []string{DiffUnreadable, DiffUnreadable, DiffUnreadable, DiffUnreadable, DiffUnreadable, DiffUnreadable}},
		"UnreadableAndStuck": {desired.Row{Err: errors.New("division by zero"), Ledger: stuck}, []string{"", "", "", "", "", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i, kind := range kinds {
				got, reason := judge(kind, test.row, false)
				require.Equal(t, test.want[i], got, kind)
				require.Equal(t, got == "", reason == "", kind)
			}
		})
	}
	got, _ := judge(sync.KindTombstone, row(true, same), true)
	require.Equal(t, DiffStale, got, "a target that is being emptied wants nothing")
}
