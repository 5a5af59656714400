package faults_test

import (
	"fmt"
	"strings"
	"time"
)

// Bits of the variant of a resource's definition, which the history of the tester knows.
const (
	variantEven   = 1 // only rows of an even size run
	variantForm   = 2 // the spec says something more
	variants      = 4
	variantNone   = -1 // it is not tracked
	tabDefinition = "definition"
)

// track returns the call of track() for a variant of a resource, and what tells the tester's history of it.
func (x *resource) track(variant int) string {
	running, spec := x.running, x.spec
	if variant&variantEven != 0 {
		running = "(" + running + ") AND size % 2 = 0"
	}
	if variant&variantForm != 0 {
		spec = strings.Replace(spec, "jsonb_build_object(", "jsonb_build_object('form', 1, ", 1)
	}
	return fmt.Sprintf(`SELECT reconciler.track('%s', '%s', '{%s}', '%s', running => $$%s$$, spec => $$%s$$); %s`,
		x.name, x.main, strings.ReplaceAll(x.keys, ", ", ","), x.target, running, spec, noteVariant(x.name, variant))
}

// wants returns the query for what is wanted with a variant.
func (x *resource) wants(variant int) string {
	sql := x.rows
	if variant == variantNone {
		return sql + " AND false"
	}
	if variant&variantEven != 0 {
		sql += " AND size % 2 = 0"
	}
	if variant&variantForm != 0 {
		sql = strings.Replace(sql, "jsonb_build_object(", "jsonb_build_object('form', 1, ", 1)
	}
	return sql
}

// noteVariant tells the tester's history of a definition.
func noteVariant(resource string, variant int) string {
	return fmt.Sprintf(`INSERT INTO test.history (tab, new) VALUES ('%s', '{"resource": "%s", "variant": %d}')`, tabDefinition, resource, variant)
}

// redefine calls track() with another condition or spec.
func (w *world) redefine(f fault) (end func()) {
	x := extra
	if f.Choice%4 == 0 {
		x = resources["num"]
	}
	variant := (w.variants[x.name] + 1 + f.Choice/7%(variants-1)) % variants
	if !w.act("BEGIN; " + w.asOwner() + x.track(variant) + "; COMMIT") {
		return nil
	}
	w.variants[x.name] = variant
	w.note("%s has variant %d", x.name, variant)
	return func() {}
}

// extra is a resource whose rows novelties alone write: no transaction that is open stands in their way.
var extra = &resource{
	name: "extra", main: "extras", keys: "id", target: "place", running: "running", spec: "test.spec('extra', id::text, jsonb_build_object('version', version))",
	setup: `CREATE TABLE extras (id bigint PRIMARY KEY, place text NOT NULL, ` + columns + `);
		SELECT test.watch('extras', 'extra');`,
	rows: `SELECT place, ARRAY[id::text], test.spec('extra', id::text, jsonb_build_object('version', version))::text FROM extras WHERE running`,
}

// fillExtra writes many rows to the table of extra, after its resource was tracked if it is not, and says whether it could.
func (w *world) fillExtra() bool {
	const rows, variant = 1500, 0
	track := ""
	if w.variants["extra"] == variantNone {
		track = w.asOwner() + extra.track(variant) + "; RESET ROLE; "
	}
	names := w.targetNames()
	filled := w.act(fmt.Sprintf(`BEGIN; %sINSERT INTO extras (id, place, size) SELECT i, (ARRAY['%s'])[1 + i %% %d], i / %[3]d FROM generate_series(1, %d) AS i
		ON CONFLICT (id) DO UPDATE SET version = excluded.version, place = excluded.place; COMMIT`, track, strings.Join(names, "','"), len(names), rows))
	if filled && track != "" {
		w.variants["extra"] = variant
	}
	return filled
}

func (w *world) truncate(fault) (end func()) { return done(w.act(`TRUNCATE extras`)) }

// keptCalls is for how long calls may still begin on the strength of a definition that has been replaced: rows are read again when
// they are so old.
const keptCalls = 2 * time.Second

// untrack untracks a resource: with all objects deleted, or kept, and tracked again.
func (w *world) untrack(f fault) (end func()) {
	before := w.variants["extra"]
	how := []string{"delete", "delete", "keep"}[f.Choice%3]
	if !w.act(fmt.Sprintf(`BEGIN; %sSELECT reconciler.untrack('extra', '%s'); %s; COMMIT`, w.asOwner(), how, noteVariant("extra", variantNone))) {
		return nil
	}
	w.note("untracked extra, release => %s", how)
	w.variants["extra"] = variantNone
	if how == "delete" {
		return func() { w.must(`TRUNCATE extras`) }
	}
	return func() {
		w.must("BEGIN; " + w.asOwner() + extra.track(before) + "; COMMIT")
		w.variants["extra"] = before
		w.keptUntil = time.Now().Add(keptCalls)
	}
}

// fleeting tracks and untracks a resource in one transaction, or empties its table and untracks it.
func (w *world) fleeting(f fault) (end func()) {
	if f.Choice%2 == 0 {
		return done(w.act(`BEGIN; CREATE TABLE IF NOT EXISTS fleeting (id int PRIMARY KEY);
			SELECT reconciler.track('fleeting', 'fleeting', '{id}', $$'t0'$$); SELECT reconciler.untrack('fleeting'); COMMIT`))
	}
	return done(w.act(`BEGIN; CREATE TABLE IF NOT EXISTS fleeting (id int PRIMARY KEY); SELECT reconciler.track('fleeting', 'fleeting', '{id}', $$'t0'$$); COMMIT`) &&
		w.act(`BEGIN; TRUNCATE fleeting; SELECT reconciler.untrack('fleeting'); COMMIT`))
}
