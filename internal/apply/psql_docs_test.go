package apply_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docSections returns the third-level headings of docs/psql.md below a second-level one, with their text.
func docSections(t *testing.T, chapter string) (names []string, texts map[string]string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/psql.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "\n## "+chapter+"\n")
	require.True(t, found, chapter)
	rest, _, _ = strings.Cut(rest, "\n## ")
	texts = map[string]string{}
	for _, section := range strings.Split(rest, "\n### ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		names, texts[name] = append(names, name), text
	}
	return names, texts
}

var (
	docColumn = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|")
	docCast   = regexp.MustCompile(`::[a-z ]+(\[\])?`)
)

func TestPsqlPageListsEveryViewWithItsColumns(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	names, texts := docSections(t, "Views")
	require.ElementsMatch(t, db.lines(t, `SELECT relname FROM pg_class WHERE relnamespace = 'reconciler'::regnamespace AND relkind = 'v'
		AND relname NOT LIKE 'desired\_%' AND obj_description(oid, 'pg_class') NOT LIKE 'Internal:%'`), names)
	for _, name := range names {
		// The table of states comes after that of columns.
		table, _, _ := strings.Cut(texts[name], "`state` is the first")
		var columns []string
		for _, match := range docColumn.FindAllStringSubmatch(table, -1) {
			columns = append(columns, match[1])
		}
		require.Equal(t, db.lines(t, "SELECT attname FROM pg_attribute WHERE attrelid = 'reconciler."+name+"'::regclass AND attnum > 0 ORDER BY attnum"), columns, name)
	}
}

func TestPsqlPageListsEveryFunctionForPeople(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	signatures := db.lines(t, `SELECT format('%s(%s)', p.proname, pg_get_function_arguments(p.oid)) FROM pg_proc p
		WHERE p.pronamespace = 'reconciler'::regnamespace AND p.prorettype <> 'trigger'::regtype AND obj_description(p.oid, 'pg_proc') NOT LIKE 'Internal:%'
			AND p.proname NOT IN ('sleep_lock', 'capture_template', 'interest')`)
	for i, signature := range signatures {
		signatures[i] = docCast.ReplaceAllString(signature, "")
	}
	names, _ := docSections(t, "Functions")
	require.ElementsMatch(t, signatures, names)
}

// Every statement of the recipes runs, as it stands.
func TestPsqlPageHasStatementsThatRun(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, "UPDATE reconciler.cursors SET revision = 10; INSERT INTO reconciler.targets (name) VALUES ('old'), ('asia')")
	page, err := os.ReadFile("../../docs/psql.md")
	require.NoError(t, err)
	_, recipes, found := strings.Cut(string(page), "\n## At three in the morning\n")
	require.True(t, found)
	n := 0
	for _, block := range strings.Split(recipes, "```sql\n")[1:] {
		sql, _, _ := strings.Cut(block, "```")
		for statement := range strings.SplitSeq(sql, ";") {
			if strings.TrimSpace(statement) == "" {
				continue
			}
			statement = strings.ReplaceAll(statement, "'10 min'", "'0'")
			lines(t, db.Pool, statement)
			n++
		}
	}
	require.Greater(t, n, 12)
}
