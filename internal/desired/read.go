package desired

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

// Row is one object as it stands: what the user's row asks for, and what the ledger says.
type Row struct {
	Key    string
	Wanted bool        // a running row names this target
	Spec   []byte      // PostgreSQL's text form of the spec; set when Wanted
	Hash   driver.Hash // of Spec
	Match  []byte      // values that depends_on refers to, as jsonb; nil for a plain resource
	// Protected: deletes of the object wait for approve(). It is the row's answer; without a row that of the last captured one,
	// or the ledger's if that is newer; without any, whether any object of the resource may be protected.
	Protected bool
	// Err says why the row cannot become an object: its expressions fail on it, its spec is null, or its key is
	// not unique. Nothing may be deleted on the strength of such a row.
	Err    error
	Ledger *Entry // nil when the ledger does not know the object
	Task   *Task  // nil when no apply has to do with the object
	// Unopened: an apply has changed the object, or perhaps has, and is not open yet: whether its gate is closed is not known.
	Unopened bool
	// First is the number of the record by which the read says that the object may be called for: the ledger does not say that
	// the target may have it. 0: there is none.
	First int64
	// Left: the read had as many bytes of specs and memories as it may have before it came to this one, and sent neither. The row is
	// to be read again.
	Left bool
}

// Task is the task of an apply that governs an object.
type Task struct {
	Operation int64
	Open      bool // the gate: while it is closed the object keeps what it has
	Reapply   bool // it is done by a call, also where nothing has changed
}

// Entry is the ledger's row of an object.
type Entry struct {
	State           State
	Wanted          bool
	Present         bool
	DesiredRevision int64
	AppliedRevision *int64
	AppliedHash     []byte // 16 bytes, or nil when it is not known what the target has
	FailedHash      []byte
	Attempts        int32
	LastError       *string
	HeldBy          *string
	Approved        bool
	Protected       bool
	Generation      int32    // retry() and approve() increase it
	DueIn           *float64 // seconds until the next attempt; negative when due
	AppliedAt       *time.Time
	Memory          []byte // of the driver; nil for none
}

// SpecMost is the largest spec that is applied, in bytes. The object of a larger one is blocked, and it is not even sent here.
const SpecMost = 1 << 20

// MatchMost is the most that the columns may have which depends_on refers to, in bytes of JSON. An object with more is blocked.
const MatchMost = 8 << 10

// ReadMost is how many bytes of specs and memories a read returns by default, and how many it may be allowed, beside those of one object.
const ReadMost = 4 << 20

// readSQLs are the queries of a kind of read: by default, with the tasks that govern objects, and of one key, with tasks.
type readSQLs struct{ plain, governed, alone string }

// buildReads makes the queries of plain reads, and of those that record what is about to be called for the first time.
func (r *Resource) buildReads() (reads, firsts readSQLs) {
	const order = "ORDER BY n"
	plain, governed, alone := r.buildRead(false, false), r.buildRead(true, false), r.buildRead(true, true)
	reads = readSQLs{plain + order, governed + order, alone + order}
	firsts = readSQLs{r.buildFirst(plain, "NOT governed"), r.buildFirst(governed, "is_open IS NOT FALSE"), r.buildFirst(alone, "is_open IS NOT FALSE")}
	return reads, firsts
}

// buildRead reads objects by key: $1 target name, $2 target id, $3 keys, $4... the parts of the keys, and then the gates; governed:
// and the tasks that govern them.
// Every side is a LATERAL lookup with a LIMIT: on young tables without statistics a join would become a
// scan of everything. See wanted for alone.
func (r *Resource) buildRead(governed, alone bool) string {
	task, tasks := "NULL::bigint AS operation_id, NULL::boolean AS is_open, NULL::boolean AS reapply", ""
	if governed {
		task, tasks = "g.operation_id, g.is_open, g.reapply", "LEFT JOIN LATERAL ("+fmt.Sprintf(taskSQL, r.ID, "$2", "i.key")+") AS g ON true\n"
	}
	var b strings.Builder
	fits := fmt.Sprintf("octet_length(d.spec) <= %d", SpecMost)
	match := "d.match"
	if len(r.matches) > 0 {
		small := fmt.Sprintf("octet_length(d.match) <= %d", MatchMost)
		fits, match = fits+" AND "+small, fmt.Sprintf("CASE WHEN %s THEN d.match END AS match", small)
	}
	// Rows are counted as they come: sorted before that, all specs would go to the server's disk.
	gates := r.gatesAt()
	size := fmt.Sprintf("(coalesce(CASE WHEN %s THEN octet_length(d.spec) END, 0) + coalesce(octet_length(l.memory), 0))", fits)
	room := fmt.Sprintf("sum(%[1]s) OVER (ROWS UNBOUNDED PRECEDING) - %[1]s < $%[2]d::bigint", size, gates+3)
	fmt.Fprintf(&b, "SELECT i.n, i.key, NOT (%[1]s) AS remains, d.found, CASE WHEN %[2]s AND %[1]s THEN d.spec END AS spec, octet_length(d.spec) AS spec_bytes, %[3]s, %[4]s AS protect, ",
		room, fits, match, r.protectSQL("$2", "d.protect", "d.found IS NULL"))
	b.WriteString("l.state, l.wanted, l.present, l.desired_revision, l.applied_revision,\n")
	b.WriteString("  l.applied_hash, l.failed_hash, l.attempts, l.last_error, l.held_by, l.approved, l.protected, l.generation,\n")
	fmt.Fprintf(&b, "  CASE WHEN %s THEN l.memory END AS memory,\n", room)
	b.WriteString("  extract(epoch FROM l.next_attempt_at - clock_timestamp())::float8 AS due_in, l.applied_at, " + task + ", " +
		fmt.Sprintf(unopenedSQL, r.ID, gates, gates+1) + " AS unopened, " + fmt.Sprintf(governedSQL, gates, gates+2) + " AS governed, 0::bigint AS first\n")
	arrays, names := "$3::text[] AS keys", "keys"
	parts := ""
	if !r.Removed {
		for n := 1; n <= r.keys; n++ {
			arrays += fmt.Sprintf(", $%d::text[] AS p%d", n+3, n)
			names += fmt.Sprintf(", p%d", n)
		}
		parts = ", " + r.each(func(n int) string { return fmt.Sprintf("p%d", n) })
	}
	// The subquery hides the length of the arrays: it would make each plan of a few keys cheaper than the one for any number of
	// them, and PostgreSQL would plan each read anew, which takes as long as the rest of it.
	b.WriteString("FROM (SELECT " + arrays + " OFFSET 0) AS a CROSS JOIN LATERAL unnest(" + names + ") WITH ORDINALITY AS i(key" + parts)
	b.WriteString(", n)\nLEFT JOIN LATERAL (")
	if r.Removed {
		b.WriteString("SELECT true AS found, NULL::text AS spec, NULL::text AS match, NULL::boolean AS protect WHERE false AND $1::text IS NULL")
	} else {
		fmt.Fprintf(&b, "SELECT true AS found, d.spec::text AS spec, d.match::text AS match, d.protect IS NOT FALSE AS protect FROM %s AS d WHERE ", r.view)
		b.WriteString(r.wanted(alone) + " LIMIT 2")
	}
	fmt.Fprintf(&b, ") AS d ON true\nLEFT JOIN LATERAL (SELECT * FROM reconciler.ledger l WHERE l.target_id = $2 AND l.resource_id = %d AND l.key = i.key LIMIT 1) AS l ON true\n%s", r.ID, tasks)
	return b.String()
}

// protectSQL is whether the row protects the object i.key; if there is none, whether the last captured one did.
func (r *Resource) protectSQL(targetID, protect, absent string) string {
	if !r.protects {
		return protect
	}
	return fmt.Sprintf("CASE WHEN %s THEN reconciler.captured_protect(%s, %d, i.key) ELSE %s END", absent, targetID, r.ID, protect)
}

// wanted is the condition that d is a running row of target $1 with the key i. PostgreSQL evaluates conditions in an order of its
// own: where it reads a small table whole it may evaluate a row's expressions before it compares its key, and a row that
// they fail on would spoil the look at every other. With alone no expression is evaluated but of the row with that key.
func (r *Resource) wanted(alone bool) string {
	var key strings.Builder
	for n := 1; n <= r.keys; n++ {
		fmt.Fprintf(&key, "d.key_%d = %s AND ", n, r.typed(n, fmt.Sprintf("i.p%d", n)))
	}
	key.WriteString(`d.key COLLATE "C" = i.key`)
	const wanted = "(d.target = $1 OR d.target IS NULL) AND d.running"
	if alone {
		return fmt.Sprintf("%[1]s AND CASE WHEN %[1]s THEN %[2]s ELSE false END", key.String(), wanted)
	}
	return key.String() + " AND " + wanted
}

// buildCast only converts the parts of one key: $1...
func (r *Resource) buildCast() string {
	return "SELECT " + r.each(func(n int) string { return r.typed(n, fmt.Sprintf("$%d::text", n)) + "::text" })
}

// manyKeys is from how many keys on a query is planned for itself. A plan that a connection keeps may be of the time when
// a table was small, and read all of it for each key.
const manyKeys = 50

// planned has a query of n keys planned for itself when they are many; planning takes 0.2 ms to 2 ms.
func planned(args []any, n int) []any {
	if n < manyKeys {
		return args
	}
	return append([]any{pgx.QueryExecModeExec}, args...)
}

// read is how objects are read.
type read struct {
	db       store.DBTX
	target   string
	targetID int32
	gates    Gates
	sqls     readSQLs
	args     []any // after those of the gates
	most     int64 // bytes of specs and memories, beside those of one object
	recorded func(number int64)
}

// Read reads objects of one target by key, in the order of the keys, one row for each. A row that cannot be read
// has its Err set and spoils no other; the error returned is about the database or the definition.
func (r *Resource) Read(ctx context.Context, db store.DBTX, target string, targetID int32, keys []string) ([]Row, error) {
	return r.ReadKnowing(ctx, db, target, targetID, keys, Gates{}, ReadMost)
}

// ReadEach reads objects with any number of bytes, one read after the other until none is left, and calls fn with each row and the
// place of its key.
func (r *Resource) ReadEach(ctx context.Context, db store.DBTX, target string, targetID int32, keys []string, fn func(i int, row Row) error) error {
	places := make([]int, len(keys))
	for i := range places {
		places[i] = i
	}
	for len(keys) > 0 {
		rows, err := r.Read(ctx, db, target, targetID, keys)
		if err != nil {
			return err
		}
		var leftKeys []string
		var leftPlaces []int
		for i, row := range rows {
			if row.Left {
				leftKeys, leftPlaces = append(leftKeys, keys[i]), append(leftPlaces, places[i])
			} else if err := fn(places[i], row); err != nil {
				return err
			}
		}
		keys, places = leftKeys, leftPlaces
	}
	return nil
}

// ReadKnowing is Read for somebody who has looked at the gates before, and who has room for so many bytes.
func (r *Resource) ReadKnowing(ctx context.Context, db store.DBTX, target string, targetID int32, keys []string, gates Gates, most int64) ([]Row, error) {
	return r.readKeys(ctx, read{db: db, target: target, targetID: targetID, gates: gates, sqls: r.reads, most: most}, keys)
}

func (r *Resource) readKeys(ctx context.Context, how read, keys []string) ([]Row, error) {
	rows, err := r.readBatch(ctx, how, keys)
	if err == nil || !isDataError(err) {
		return rows, err
	}
	if len(keys) == 1 {
		rows, _, err := r.readAll(ctx, how, how.sqls.alone, keys)
		if err == nil || !isDataError(err) {
			return rows, err
		}
		row, err := r.readSpoiled(ctx, how, keys[0], err)
		return []Row{row}, err
	}
	half := len(keys) / 2
	left, err := r.readKeys(ctx, how, keys[:half])
	if err != nil {
		return nil, err
	}
	right, err := r.readKeys(ctx, how, keys[half:])
	return append(left, right...), err
}

// readBatch reads with the query that the last read found to be the right one, and with the other if it was not.
func (r *Resource) readBatch(ctx context.Context, how read, keys []string) ([]Row, error) {
	with, sql := r.governed.Load(), how.sqls.plain
	if with {
		sql = how.sqls.governed
	}
	rows, governed, err := r.readAll(ctx, how, sql, keys)
	if err == nil && governed != with {
		r.governed.Store(governed)
		if governed {
			rows, _, err = r.readAll(ctx, how, how.sqls.governed, keys)
		}
	}
	return rows, err
}

// readAll reads objects by one of the queries of buildReads, and says whether there may be tasks that govern objects; of no
// key that could be a row's it says so of none.
func (r *Resource) readAll(ctx context.Context, how read, sql string, keys []string) (out []Row, governed bool, err error) {
	args, places, out := r.readArgs(how.target, how.targetID, keys)
	unopened, _ := how.gates.Known()
	args = append(args, how.gates.Since, unopened, len(how.gates.Operations) > 0, how.most)
	args = append(args, how.args...)
	result, err := how.db.Query(ctx, sql, planned(args, len(keys))...)
	if err != nil {
		return nil, false, fmt.Errorf("read rows of resource %s: %w", r.Name, err)
	}
	defer result.Close()
	recorded := int64(0)
	for result.Next() {
		n, row, may, err := r.scanRow(result)
		if err != nil {
			return nil, false, fmt.Errorf("read rows of resource %s: %w", r.Name, err)
		}
		if row.First != 0 && row.First != recorded {
			recorded = row.First
			how.recorded(recorded)
		}
		governed = may
		if r.Removed && row.Ledger != nil && !row.Ledger.Protected {
			row.Ledger.Approved = true // by untrack()
		}
		at := &out[places[n-1]]
		if at.Wanted || at.Err != nil {
			row.Wanted, row.Err = false, fmt.Errorf("key %q is not unique: more than one running row has it", row.Key)
		}
		*at = row
	}
	if err := result.Err(); err != nil {
		return nil, false, fmt.Errorf("read rows of resource %s: %w", r.Name, err)
	}
	out, err = r.readUnsplit(ctx, how, out, places)
	return out, governed, err
}

// readArgs splits the keys. A key that has not the form of this resource's keys can be no row's; it is left out of
// the query for rows, and places says which of the keys are in it.
func (r *Resource) readArgs(target string, targetID int32, keys []string) (args []any, places []int, out []Row) {
	out = make([]Row, len(keys))
	parts := make([][]string, r.keys)
	asked := make([]string, 0, len(keys))
	for i, key := range keys {
		out[i].Key = key
		split, ok := SplitKey(key, r.keys)
		if !ok && !r.Removed {
			continue
		}
		asked = append(asked, key)
		places = append(places, i)
		if r.Removed {
			continue
		}
		for n, part := range split {
			parts[n] = append(parts[n], part)
		}
	}
	args = []any{target, targetID, asked}
	if !r.Removed {
		for _, column := range parts {
			args = append(args, column)
		}
	}
	return args, places, out
}

// buildEntry reads what the ledger and applies say of a key alone: $1 target id, $2 resource id, $3 key, and of the gates since and
// applies.
func (r *Resource) buildEntry() string {
	return fmt.Sprintf(`SELECT 1::bigint, i.key, false, NULL::boolean, NULL::text, NULL::int, NULL::text, %s, l.state, l.wanted, l.present, l.desired_revision, l.applied_revision,
  l.applied_hash, l.failed_hash, l.attempts, l.last_error, l.held_by, l.approved, l.protected, l.generation, l.memory, extract(epoch FROM l.next_attempt_at - clock_timestamp())::float8, l.applied_at,
  g.operation_id, g.is_open, g.reapply, %s, true, 0::bigint
FROM (SELECT $3::text AS key) AS i
LEFT JOIN LATERAL (SELECT * FROM reconciler.ledger l WHERE l.target_id = $1 AND l.resource_id = $2::int AND l.key = i.key LIMIT 1) AS l ON true
LEFT JOIN LATERAL (%s) AS g ON true`, r.protectSQL("$1", "NULL::boolean", "true"), fmt.Sprintf(unopenedSQL, r.ID, 4, 5), fmt.Sprintf(taskSQL, r.ID, "$1", "i.key"))
}

// readEntry reads what the ledger says about an object that has no readable row.
func (r *Resource) readEntry(ctx context.Context, how read, key string) (Row, error) {
	row := Row{Key: key}
	unopened, _ := how.gates.Known()
	result, err := how.db.Query(ctx, r.entrySQL, how.targetID, r.ID, key, how.gates.Since, unopened)
	if err != nil {
		return row, fmt.Errorf("read the ledger of resource %s: %w", r.Name, err)
	}
	defer result.Close()
	for result.Next() {
		if _, row, _, err = r.scanRow(result); err != nil {
			return row, fmt.Errorf("read the ledger of resource %s: %w", r.Name, err)
		}
	}
	return row, result.Err()
}

// readUnsplit fills in the ledger's side of keys that were left out of the query.
func (r *Resource) readUnsplit(ctx context.Context, how read, out []Row, places []int) ([]Row, error) {
	if len(places) == len(out) {
		return out, nil
	}
	asked := make(map[int]bool, len(places))
	for _, place := range places {
		asked[place] = true
	}
	for i := range out {
		if asked[i] {
			continue
		}
		row, err := r.readEntry(ctx, how, out[i].Key)
		if err != nil {
			return nil, err
		}
		out[i] = row
	}
	return out, nil
}

// readSpoiled deals with one key on which the query fails. If the key itself cannot be a value of the key's type, no
// row can have it (the definition had another key once). Otherwise the row is there and its expressions fail on it.
func (r *Resource) readSpoiled(ctx context.Context, how read, key string, cause error) (Row, error) {
	row, err := r.readEntry(ctx, how, key)
	if err != nil {
		return row, err
	}
	parts, _ := SplitKey(key, r.keys)
	args := make([]any, len(parts))
	for i, part := range parts {
		args[i] = part
	}
	if _, err := how.db.Exec(ctx, r.castSQL, args...); err != nil {
		if isDataError(err) {
			return row, nil
		}
		return row, fmt.Errorf("read rows of resource %s: %w", r.Name, err)
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](cause); ok {
		cause = errors.New(pgErr.Message)
	}
	row.Err = fmt.Errorf("its row cannot be read: %w", cause)
	return row, nil
}

// isDataError reports whether a query failed because of the values in a row, as opposed to the database being
// unreachable or the definition being wrong. A user's function may raise any code, so it is what remains.
func isDataError(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(pgErr.Code) != 5 {
		return false
	}
	switch pgErr.Code[:2] {
	case "08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "F0", "RC", "XX":
		return false
	}
	return true
}

// Missing returns those of the keys that no running row of the target has. A key whose row cannot be read is not
// missing: the row is there.
func (r *Resource) Missing(ctx context.Context, db store.DBTX, target string, keys []string) ([]string, error) {
	if r.Removed {
		return keys, nil
	}
	missing, err := r.missing(ctx, db, target, keys, false)
	if err == nil || !isDataError(err) {
		return missing, err
	}
	if len(keys) == 1 {
		missing, err := r.missing(ctx, db, target, keys, true)
		if err == nil || !isDataError(err) {
			return missing, err
		}
		row, err := r.readSpoiled(ctx, read{db: db}, keys[0], err)
		if err != nil || row.Err != nil {
			return nil, err
		}
		return keys, nil
	}
	half := len(keys) / 2
	left, err := r.Missing(ctx, db, target, keys[:half])
	if err != nil {
		return nil, err
	}
	right, err := r.Missing(ctx, db, target, keys[half:])
	return append(left, right...), err
}

func (r *Resource) missing(ctx context.Context, db store.DBTX, target string, keys []string, alone bool) ([]string, error) {
	args, places, out := r.readArgs(target, 0, keys)
	unsplit := unsplitKeys(places, out)
	if len(places) == 0 {
		return unsplit, nil
	}
	columns := make([]string, r.keys)
	for n := range columns {
		columns[n] = fmt.Sprintf("$%d::text[]", n+4)
	}
	// LATERAL with a LIMIT, as in buildRead: NOT EXISTS became a hash of all rows of a target.
	sql := fmt.Sprintf(`SELECT i.key FROM unnest($3::text[], %s) AS i(key, %s) LEFT JOIN LATERAL (
SELECT true AS found FROM %s AS d WHERE %s LIMIT 1) AS d ON true
WHERE $2::int IS NOT NULL AND d.found IS NULL`,
		strings.Join(columns, ", "), r.each(func(n int) string { return fmt.Sprintf("p%d", n) }), r.view, r.wanted(alone))
	rows, err := db.Query(ctx, sql, planned(args, len(keys))...)
	if err != nil {
		return nil, fmt.Errorf("look for rows of resource %s: %w", r.Name, err)
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for rows of resource %s: %w", r.Name, err)
	}
	return append(missing, unsplit...), nil
}

// unsplitKeys returns the keys that are not of the form of this resource's keys, and so no row's.
func unsplitKeys(places []int, out []Row) []string {
	split := make(map[int]bool, len(places))
	for _, place := range places {
		split[place] = true
	}
	var keys []string
	for i, row := range out {
		if !split[i] {
			keys = append(keys, row.Key)
		}
	}
	return keys
}
