package faults_test

import (
	"fmt"
	"strings"
)

// table chooses a resource.
func (x *writer) table() *resource {
	return resources[x.world.plan.Resources[x.r.IntN(len(x.world.plan.Resources))]]
}

// key chooses one of the keys that all writers share.
func (x *writer) key() int { return x.r.IntN(keyCount) }

// statements returns one to four statements.
func (x *writer) statements() string {
	all := make([]string, 1+x.r.IntN(4))
	for i := range all {
		all[i] = x.statement(x.table(), x.key())
	}
	return strings.Join(all, "; ")
}

// reserved returns statements on keys of this writer alone, so that nobody waits for the transaction that has them.
func (x *writer) reserved() string {
	all := make([]string, 1+x.r.IntN(3))
	for i := range all {
		t := x.table()
		x.next = (x.next + 1) % reservedCount // never one that an own transaction has still open
		number := reservedFrom + x.number*reservedCount + x.next
		all[i] = x.upsert(t, number)
		if x.r.IntN(4) == 0 {
			all[i] = fmt.Sprintf("DELETE FROM %s WHERE (%s) = (%s)", t.main, t.keys, t.key(number))
		}
	}
	return strings.Join(all, "; ")
}

// nowhere is a target that no process has: rows may name it, and harm nothing.
const nowhere = "nowhere"

// place chooses a target, or all of them where that is possible.
func (x *writer) place(t *resource) string {
	if t.everywhere && x.r.IntN(6) == 0 {
		return "NULL"
	}
	name := x.world.plan.Targets[x.r.IntN(len(x.world.plan.Targets))].Name
	if x.r.IntN(50) == 0 {
		name = nowhere
	}
	if t.name == "txt" && x.r.IntN(2) == 0 {
		name = strings.ToUpper(name)
	}
	return "'" + name + "'"
}

func (x *writer) upsert(t *resource, number int) string {
	return fmt.Sprintf("INSERT INTO %s (%s, place, size) VALUES (%s, %s, %d) ON CONFLICT (%s) DO UPDATE SET size = excluded.size, place = excluded.place, version = nextval('test.versions')",
		t.main, t.keys, t.key(number), x.place(t), x.r.IntN(1000), t.keys)
}

// statement returns a change of one row, or of a few.
func (x *writer) statement(t *resource, number int) string {
	where := fmt.Sprintf(" WHERE (%s) = (%s)", t.keys, t.key(number))
	update := "UPDATE " + t.main + " SET version = nextval('test.versions'), "
	switch n := x.r.IntN(100); {
	case n < 15:
		return fmt.Sprintf("INSERT INTO %s (%s, place, size) VALUES (%s, %s, %d) ON CONFLICT DO NOTHING", t.main, t.keys, t.key(number), x.place(t), x.r.IntN(1000))
	case n < 35:
		return x.upsert(t, number)
	case n < 50:
		return update + fmt.Sprintf("size = %d", x.r.IntN(1000)) + where
	case n < 58:
		return update + "place = " + x.place(t) + where
	case n < 66:
		return update + "running = NOT running" + where
	case n < 76:
		return "DELETE FROM " + t.main + where
	case n < 82: // another key; where it exists already that is an error of the writer's
		return fmt.Sprintf("UPDATE %s SET (%s) = ROW (%s), version = nextval('test.versions')", t.main, t.keys, t.key(x.key())) + where
	case n < 86: // deleted and made again at once
		return "DELETE FROM " + t.main + where + "; " + x.upsert(t, number)
	case n < 90:
		return "UPDATE " + t.main + " SET seen = seen + 1" + where
	case n < 92:
		some := make([]string, 5)
		for i := range some {
			some[i] = "(" + t.key(x.key()) + ")"
		}
		return update + fmt.Sprintf("size = size + 1 WHERE (%s) IN (%s)", t.keys, strings.Join(some, ", "))
	default:
		return x.special(t, update, where)
	}
}

// special returns what only some tables have.
func (x *writer) special(t *resource, update, where string) string {
	if t.name != "svc" {
		return update + "size = -size" + where
	}
	id := x.r.IntN(8)
	workspace := fmt.Sprintf("UPDATE workspaces SET version = nextval('test.versions'), suspended = %%s WHERE id = %d", id)
	switch x.r.IntN(6) {
	case 0:
		return update + fmt.Sprintf("workspace = %d", id) + where
	case 1:
		return fmt.Sprintf("DELETE FROM workspaces WHERE id = %d", id)
	case 2:
		return fmt.Sprintf("INSERT INTO workspaces (id) VALUES (%d) ON CONFLICT DO NOTHING", id)
	case 3:
		return fmt.Sprintf(workspace, "NOT suspended")
	default:
		return fmt.Sprintf(workspace, "suspended")
	}
}

// bulk returns a change of many rows.
func (x *writer) bulk() string {
	n := x.world.plan.Bulk
	x.world.count("bulk transactions", 1)
	switch x.r.IntN(4) {
	case 0:
		return fmt.Sprintf("DELETE FROM nums WHERE id BETWEEN %d AND %d", bulkFrom, bulkFrom+x.r.IntN(2*n))
	case 1:
		return fmt.Sprintf("UPDATE nums SET version = nextval('test.versions'), size = size + 1 WHERE id BETWEEN %d AND %d", bulkFrom, bulkFrom+n)
	default:
		return fmt.Sprintf("INSERT INTO nums (id, place) SELECT i, %s FROM generate_series(%d, %d) AS i ON CONFLICT (id) DO UPDATE SET place = excluded.place, version = nextval('test.versions')",
			x.place(resources["num"]), bulkFrom, bulkFrom+n-1)
	}
}
