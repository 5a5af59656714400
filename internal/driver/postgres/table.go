package postgres

import "strings"

// columns are what the table must have, by the names that options.columns may replace.
var columns = []string{"target", "resource", "key", "spec", "revision", "term", "updated_at"}

// table is the table's name and the names of its columns, all of them quoted.
type table struct {
	name    string
	columns map[string]string
}

// statements are the SQL texts of one table.
type statements struct {
	create     string
	lock       string // name of the lock that who makes the table takes
	apply      string
	applyBatch string
	remove     string
	listFirst  string
	listNext   string
	check      string
}

func (t table) statements() statements {
	pairs := []string{"{table}", t.name}
	for _, column := range columns {
		pairs = append(pairs, "{"+column+"}", t.columns[column])
	}
	replacer := strings.NewReplacer(pairs...)
	return statements{
		create:     replacer.Replace(createSQL),
		lock:       replacer.Replace("reconciler create {table}"),
		apply:      replacer.Replace(insertSQL + applySQL + conflictSQL),
		applyBatch: replacer.Replace(insertSQL + applyBatchSQL + conflictSQL + returningSQL),
		remove:     replacer.Replace(removeSQL),
		listFirst:  replacer.Replace(listSQL + listOrderSQL),
		listNext:   replacer.Replace(listSQL + " AND {key} > $4" + listOrderSQL),
		check:      replacer.Replace("EXPLAIN " + insertSQL + checkSQL + conflictSQL),
	}
}

// The names are compared byte by byte: two keys are never one because some language sorts them alike.
const createSQL = `CREATE TABLE IF NOT EXISTS {table} (
    {target}     text COLLATE "C" NOT NULL,
    {resource}   text COLLATE "C" NOT NULL,
    {key}        text COLLATE "C" NOT NULL,
    {spec}       jsonb NOT NULL,
    {revision}   bigint NOT NULL,
    {term}       bigint NOT NULL,
    {updated_at} timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY ({target}, {resource}, {key})
)`

const insertSQL = `INSERT INTO {table} AS have ({target}, {resource}, {key}, {spec}, {revision}, {term}, {updated_at})
`

const applySQL = `VALUES ($1::text, $2::text, $3::text, $4::text::jsonb, $5::bigint, $6::bigint, now())
`

// In the order of the primary key, so that two batches never wait for each other.
const applyBatchSQL = `SELECT o.target, o.resource, o.key, o.spec::jsonb, o.revision, o.term, now()
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
     AS o (target, resource, key, spec, revision, term)
ORDER BY o.target, o.resource, o.key
`

const checkSQL = `VALUES ('', '', '', 'null', 0, 0, now())
`

// A newer term wins whatever its revision; within a term the revision decides, where the call has one.
const conflictSQL = `ON CONFLICT ({target}, {resource}, {key}) DO UPDATE
SET {spec} = excluded.{spec}, {revision} = excluded.{revision}, {term} = excluded.{term}, {updated_at} = excluded.{updated_at}
WHERE have.{term} < excluded.{term}
   OR have.{term} = excluded.{term} AND (excluded.{revision} = 0 OR have.{revision} <= excluded.{revision})`

const returningSQL = `
RETURNING have.{target}, have.{resource}, have.{key}`

// Both parts see the table as it was before the statement: a row that was there and was not deleted is newer.
const removeSQL = `WITH removed AS (
    DELETE FROM {table} AS have
    WHERE have.{target} = $1::text AND have.{resource} = $2::text AND have.{key} = $3::text
      AND (have.{term} < $5::bigint OR have.{term} = $5::bigint AND ($4::bigint = 0 OR have.{revision} <= $4::bigint))
    RETURNING 1
)
SELECT NOT EXISTS (SELECT FROM removed) AND EXISTS (
    SELECT FROM {table} AS have WHERE have.{target} = $1::text AND have.{resource} = $2::text AND have.{key} = $3::text
)`

const listSQL = `SELECT {key}, substring(sha256(convert_to({spec}::text, 'UTF8')) FROM 1 FOR 16)
FROM {table} WHERE {target} = $1::text AND {resource} = $2::text AND {key} IS NOT NULL`

const listOrderSQL = ` ORDER BY {key} LIMIT $3::int`
