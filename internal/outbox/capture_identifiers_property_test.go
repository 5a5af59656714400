package outbox_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// nameParts are what hostile names are made of.
var nameParts = []string{
	`"`, `""`, `'`, `''`, `\`, `%`, `%I`, `%1$s`, `$$`, `$1`, `$capture$`, `;`, `--`, `/*`, `*/`, ` `, "\n", "\t", `.`, `(`, `)`, `{`, `}`, `,`, `/`, `é`, `🐘`, "\u202e", "\x01",
	"a", "Z", "_", "0", "old", "new", "select", "reconciler", "null", "TRUE", "int", "::text", "||",
}

// drawName returns a name of 1 to 60 bytes that is not among those taken, and takes it.
func drawName(random *rand.Rand, taken map[string]bool) string {
	for {
		var name strings.Builder
		for range 1 + random.IntN(6) {
			name.WriteString(nameParts[random.IntN(len(nameParts))])
		}
		if name.Len() <= 60 && !taken[name.String()] {
			taken[name.String()] = true
			return name.String()
		}
	}
}

// C9, C68: whatever tables and columns are called, their changes arrive under the right key, and untrack leaves nothing.
func TestCaptureOfRandomNames(t *testing.T) {
	t.Parallel()
	seed := pgtest.Pick(1, uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	taken := map[string]bool{"outbox": true}
	for range 60 {
		table := pgx.Identifier{"public", drawName(random, taken)}.Sanitize()
		columns := map[string]bool{"ctid": true, "xmin": true, "xmax": true, "cmin": true, "cmax": true, "oid": true, "tableoid": true}
		first, second, region := drawName(random, columns), drawName(random, columns), drawName(random, columns)
		quote := func(name string) string { return pgx.Identifier{name}.Sanitize() }
		w.Exec(t, fmt.Sprintf(`CREATE TABLE %s (%s text, %s text, %s text, PRIMARY KEY (%[2]s, %[3]s))`, table, quote(first), quote(second), quote(region)))
		w.Exec(t, `SELECT reconciler.track('r', $1::text::regclass, $2::text[], $3)`, table, []string{first, second}, quote(region))
		w.marks(t)
		key := []string{drawName(random, map[string]bool{}), drawName(random, map[string]bool{})}
		target := drawName(random, map[string]bool{})
		w.Exec(t, fmt.Sprintf(`INSERT INTO %s VALUES ($1, $2, $3)`, table), key[0], key[1], target)
		want := w.lines(t, `SELECT format('r %s %s', to_json($1::text), to_json($2::text))`, target, desired.JoinKey(key))
		require.Equal(t, want, w.marks(t), "table %s", table)
		require.Equal(t, w.lines(t, `SELECT to_json(ARRAY[$1, $2, $3, $4, $5]::text[])::text`, target, desired.JoinKey(key), key[0], key[1], target),
			w.lines(t, `SELECT to_json(ARRAY[target, key, spec->>$1::text, spec->>$2::text, spec->>$3::text])::text FROM reconciler.desired_r`, first, second, region), "table %s", table)
		w.Exec(t, `SELECT reconciler.untrack('r', release => 'keep')`)
		require.Equal(t, []string{"0 0 0"}, w.lines(t, `SELECT format('%s %s %s', (SELECT count(*) FROM pg_trigger WHERE tgrelid = $1::text::regclass AND NOT tgisinternal),
			(SELECT count(*) FROM reconciler.resources), (SELECT count(*) FROM pg_class WHERE relname = 'desired_r'))`, table), "table %s", table)
		w.marks(t)
		w.marked(t, fmt.Sprintf(`DELETE FROM %s`, table))
	}
	require.Equal(t, w.lines(t, `SELECT '0'`), w.lines(t, `SELECT count(*)::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'reconciler' AND p.proname ~ '^capture_[0-9]'`))
}
