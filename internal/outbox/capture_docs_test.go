package outbox_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
)

var (
	docSQL     = regexp.MustCompile("(?ms)^```sql( error)?\n(.*?)^```$")
	docComment = regexp.MustCompile(`(?m)^--.*\n?`)
	docRow     = regexp.MustCompile(`(?m)^--  (.*)$`)
)

// The SQL on the page is executed, and what it shows is what comes.
func TestDocsOfWritingAResource(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/writing-a-resource.md")
	require.NoError(t, err)
	w := newWorld(t)
	conn := w.Conn(t)
	blocks := docSQL.FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 10)
	for _, block := range blocks {
		failing, text := block[1] != "", block[2]
		sql := docComment.ReplaceAllString(text, "")
		if failing {
			_, shown, _ := strings.Cut(text, "-- ERROR:  ")
			message, hint, _ := strings.Cut(shown, "\n-- HINT:  ")
			refused(t, conn, sql, message, strings.TrimSpace(hint))
			continue
		}
		shown := docRow.FindAllStringSubmatch(text, -1)
		if len(shown) == 0 {
			_, err := conn.Exec(t.Context(), sql)
			require.NoError(t, err, sql)
			continue
		}
		statements := strings.SplitAfter(strings.TrimSpace(sql), ";\n")
		for _, statement := range statements[:len(statements)-1] {
			_, err := conn.Exec(t.Context(), statement)
			require.NoError(t, err, statement)
		}
		require.Equal(t, table(shown), query(t, conn, statements[len(statements)-1]), sql)
	}
	require.Empty(t, w.problems(t))
	require.NotContains(t, w.marks(t), `deployment "us" "2"`, "a row that never ran, whose heartbeat was updated")
}

// table returns the cells of a result as psql prints it.
func table(shown [][]string) (rows [][]string) {
	for _, line := range shown {
		if strings.HasPrefix(line[1], "-") {
			continue
		}
		var row []string
		for cell := range strings.SplitSeq(line[1], " | ") {
			row = append(row, strings.TrimSpace(cell))
		}
		rows = append(rows, row)
	}
	return rows
}

// query returns the names of the columns and the rows, as text.
func query(t *testing.T, conn *pgx.Conn, sql string) (rows [][]string) {
	t.Helper()
	results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	require.NoError(t, err, sql)
	var names []string
	for _, field := range results[0].FieldDescriptions {
		names = append(names, field.Name)
	}
	rows = append(rows, names)
	for _, values := range results[0].Rows {
		var row []string
		for _, value := range values {
			row = append(row, string(value))
		}
		rows = append(rows, row)
	}
	return rows
}

var docKeyRow = regexp.MustCompile("(?m)^\\| (?:`([^`|]+)`|`` \\(empty\\)), (?:`([^`|]+)`|`` \\(empty\\)) \\| `([^`]+)` \\|$")

// The keys of the page on concepts are what the code makes of the columns.
func TestDocsOfKeys(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/concepts.md")
	require.NoError(t, err)
	rows := docKeyRow.FindAllStringSubmatch(string(page), -1)
	require.Len(t, rows, 4)
	for _, row := range rows {
		require.Equal(t, row[3], desired.JoinKey(row[1:3]))
	}
}
