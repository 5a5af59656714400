package postgres

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
)

// C26.
func TestVerdictsOfSQLSTATEs(t *testing.T) {
	t.Parallel()

	for want, codes := range map[driver.Verdict][]string{
		driver.VerdictUnreachable: {
			"", "08006", "08P01", "28P01", "28000", "3D000", "3F000", "42501", "42P01", "42703", "42P10", "25006", "53100", "53200", "53300",
			"57P01", "57P02", "57P03", "57P04", "57P05", "58030",
		},
		driver.VerdictBackoff:  {"40001", "40P01", "55P03", "57014", "23503", "P0001", "XX000", "25P02", "55006"},
		driver.VerdictTerminal: {"21000", "22P02", "22P05", "22021", "22003", "23502", "23505", "23514", "42601", "42804", "42846", "44000", "54000"},
	} {
		for _, code := range codes {
			require.Equal(t, want, verdict(code), "SQLSTATE %q", code)
		}
	}
}

func TestTheDocumentedTableIsTheOneThatIsMade(t *testing.T) {
	t.Parallel()

	docs, err := os.ReadFile("../../../docs/drivers.md")
	require.NoError(t, err)
	r := options.New(nil)
	require.Contains(t, string(docs), "```sql\n"+readTable(r).statements().create+"\n```")
	require.NoError(t, r.Err())
}
