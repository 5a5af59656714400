package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const (
	// patience is how long everything may take to come to rest; an idle machine needs a tenth of it.
	patience = 2 * time.Minute
	// patienceMost is for machines that have no time: it goes on as long as there are calls.
	patienceMost = 6 * time.Minute
)

// settle ends what is still open, and waits until everything is applied, says the product. It returns whether that came.
func (w *world) settle() bool {
	for _, gid := range w.column(`SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`) {
		w.order("COMMIT PREPARED '" + gid + "'")
	}
	for _, e := range w.endpoints {
		e.weather(0, false)
	}
	if w.agent != nil {
		close(w.agent.heal)
	}
	for _, h := range w.hosts {
		close(h.calm)
		h.line.mend()
	}
	for _, name := range w.plan.Resources { // they would be waited for
		w.order("DELETE FROM " + resources[name].main + " WHERE place ILIKE '" + nowhere + "'")
	}
	steps := `SELECT reconciler.resume(name) FROM reconciler.targets WHERE name = $1`
	if !w.plan.Honest { // rows were written with triggers disabled: a sync must find them
		steps = `SELECT reconciler.resume(name), reconciler.resync(name) FROM reconciler.targets WHERE name = $1`
	}
	for _, t := range w.plan.Targets {
		w.insist(func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, steps, t.Name)
			return err
		})
	}
	begun := time.Now()
	approved := false
	for calls := -1; ; {
		w.allUp()
		w.hostsUp()
		w.rolloutsEnd()
		left := w.leftOld()
		code, said := w.wait(30 * time.Second)
		if left && code == 0 && w.rolloutsEnd() {
			break
		}
		w.note("wait: exit code %d, old primary left %v: %s", code, left, said[:min(len(said), 500)])
		before := calls
		calls = len(w.journal.all())
		if took := time.Since(begun); took > patienceMost || took > patience && calls == before {
			_, why := w.reasons(w.plan.Targets[0].Name)
			w.violate("I1 rest", "it does not come to rest: exit code %d, old primary left %v\n%s\n%s", code, left, clip(said), clip(why))
			return false
		}
		approved = approved || w.text(`SELECT count(*) FROM reconciler.held WHERE held_by = 'guard'`) != "0"
		w.mend(approved)
	}
	w.note("at rest after %s", time.Since(begun).Round(time.Millisecond))
	return true
}

func clip(text string) string {
	if len(text) > 4000 {
		return text[:4000] + "..."
	}
	return text
}

// mend does what a person would: blocked objects are tried again, held deletes approved.
func (w *world) mend(approve bool) {
	for _, t := range w.plan.Targets {
		w.order(`SELECT reconciler.retry($1)`, t.Name)
		w.approveRemote(t)
		if approve && t.MaxDeletes >= 0 {
			w.approve(t)
		}
	}
}

// approve approves what a target's guard holds.
func (w *world) approve(t targetPlan) {
	w.mu.Lock()
	if w.approved.IsZero() {
		w.approved = time.Now()
	}
	w.mu.Unlock()
	w.order(`SELECT reconciler.approve($1)`, t.Name)
}

// approveRemote approves what the guard of a target's agent holds.
func (w *world) approveRemote(t targetPlan) {
	if t.Remote && w.text(`SELECT sum(held) FROM reconciler.agents WHERE target = $1`, t.Name) != "0" {
		w.order(`SELECT reconciler.approve($1)`, t.Name)
	}
}

// waitAtRest is wait once nothing happens any more but what the test does. What guards hold is approved: they count the parts that a change
// of a spec removes.
func (w *world) waitAtRest() (code int, said string) {
	for begun := time.Now(); ; {
		code, said = w.wait(30 * time.Second)
		if code == 0 || time.Since(begun) > patience {
			return code, said
		}
		for _, t := range w.plan.Targets {
			w.approveRemote(t)
			if w.text(`SELECT count(*) FROM reconciler.objects WHERE target = $1 AND held_by = 'guard'`, t.Name) != "0" {
				w.approve(t)
			}
		}
	}
}

// wait runs `reconciler wait`.
func (w *world) wait(timeout time.Duration) (code int, said string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), timeout+30*time.Second)
	defer cancel()
	cmd := w.command(ctx, binary, "wait", "--timeout", timeout.String(), "-c", filepath.Join(w.dir, "direct.yaml"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = cmd.Run() // the code tells
	return cmd.ProcessState.ExitCode(), out.String()
}

// wanted reads from the tester's own tables what each target must have.
func (w *world) wanted() map[object]string {
	want := map[object]string{}
	for _, name := range w.plan.wantedFrom() {
		w.insist(func(ctx context.Context, conn *pgx.Conn) error {
			rows, err := conn.Query(ctx, resources[name].wants(w.variants[name]))
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var place *string
				var key []string
				var spec string
				if err := rows.Scan(&place, &key, &spec); err != nil {
					return err
				}
				for _, t := range w.plan.Targets {
					if (place == nil || *place == t.Name) && t.Name != w.drained {
						want[object{t.Name, name, keyText(key)}] = spec
					}
				}
			}
			return rows.Err()
		})
	}
	return want
}

// sameForm writes a spec as encoding/json does: what webhooks get is compared by value, files byte for byte.
func sameForm(text string) string {
	var value any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&value) != nil {
		return text
	}
	same, err := json.Marshal(value)
	if err != nil {
		return text
	}
	return string(same)
}

// compare says what is not as it should be.
func (w *world) compare() []violation {
	want, have := map[object]string{}, map[object]string{}
	wantFiles, haveFiles := map[object]string{}, map[object]string{}
	wantFollowed := map[object]string{}
	wantMembers, haveMembers := map[object]string{}, map[object]string{}
	for _, c := range w.clusters() {
		maps.Copy(haveMembers, c.contents())
	}
	driverOf := map[string]string{}
	for _, t := range w.plan.Targets {
		driverOf[t.Name] = t.Driver
	}
	for o, spec := range w.wanted() {
		switch driverOf[o.Target] {
		case "file":
			wantFiles[object{o.Target, "file", fileName(o.Resource, o.Key)}] = spec + "\n"
		case "stream":
			wantFollowed[o] = spec
		case "kubernetes":
			wantMembers[o] = w.members(o, spec)
		default:
			want[o] = sameForm(spec)
		}
	}
	for _, e := range w.endpoints {
		for o, spec := range e.contents() {
			have[o] = sameForm(spec)
		}
	}
	for _, t := range w.plan.Targets {
		if t.Driver == "file" {
			for name, content := range w.files(t) {
				haveFiles[object{t.Name, "file", name}] = content
			}
		}
	}
	w.mayRemain(want, have)
	w.count("objects at rest", len(want)+len(wantFiles)+len(wantMembers))
	return slices.Concat(differences(want, have), differences(wantFiles, haveFiles), differences(wantMembers, haveMembers), w.compareStream(wantFollowed))
}

// files reads the files of a target by their path in it.
func (w *world) files(t targetPlan) map[string]string {
	files := map[string]string{}
	dir := w.targetDir(t)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && entry.IsDir() {
			return nil
		}
		if err != nil || entry.Name() == ".reconciler-owner" { // whose directory it is
			return err
		}
		if temporary.MatchString(entry.Name()) && w.killed() {
			w.count("temporary files of killed processes", 1) // the syncs of later minutes sweep them
			return nil
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path) // path is in dir
		files[filepath.ToSlash(name)] = string(content)
		return err
	})
	if err != nil {
		w.violate("tester", "read %s: %v", dir, err)
	}
	return files
}

// temporary is the name of a file that was being written.
var temporary = regexp.MustCompile(`^\.reconciler-[A-Z0-9]+\.tmp$`)

// killed says whether a process of this world was, by a fault or at a crash point.
func (w *world) killed() bool {
	places := slices.Clone(w.replicas)
	for _, h := range w.hosts {
		places = append(places, h.replica)
	}
	return slices.ContainsFunc(places, func(r *replica) bool { return slices.ContainsFunc(r.all, (*process).wasKilled) })
}

// leave stops every process in good order, and looks at what is left behind. A target that was taken over from a dead
// owner is clean soon after its first sync.
func (w *world) leave() {
	for range 900 {
		if w.text(`SELECT bool_and(clean) FROM reconciler.targets WHERE configured`) == "true" {
			break
		}
		pass(100*time.Millisecond, w.t.Context().Done())
	}
	w.leaveHosts()
	for _, r := range w.replicas {
		r.process().signal(syscall.SIGTERM)
	}
	for _, r := range w.replicas {
		p := r.process()
		if !p.ends(pgtest.Patience) {
			w.violate("stop", "%s (process %d) does not end after SIGTERM", r.name, p.pid)
			continue
		}
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			w.violate("stop", "%s (process %d) ended with %d after SIGTERM", r.name, p.pid, code)
		}
	}
	// A backend needs a moment to notice that its client is gone.
	const sessions = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'reconciler%'`
	const locks = `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	for what, sql := range map[string]string{"sessions": sessions, "advisory locks": locks} {
		if w.pooler != nil && sql == sessions {
			continue // the pooler keeps some for later
		}
		left := ""
		for range 900 {
			if left = w.text(sql); left == "0" {
				break
			}
			pass(100*time.Millisecond, w.t.Context().Done())
		}
		if left != "0" {
			w.violate("left behind", "%s %s of the product", left, what)
		}
	}
	if owned := w.text(`SELECT count(*) FROM reconciler.targets WHERE owner IS NOT NULL OR configured AND NOT clean`); owned != "0" {
		w.violate("left behind", "%s targets are owned or not clean after a clean stop", owned)
	}
	if entries, err := os.ReadDir(w.temp); err != nil || len(entries) > 0 {
		w.violate("left behind", "temporary files: %v (%v)", entries, err)
	}
}

// column runs a query for one column.
func (w *world) column(sql string) (values []string) {
	w.t.Helper()
	w.insist(func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, sql)
		if err != nil {
			return err
		}
		values, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return values
}
