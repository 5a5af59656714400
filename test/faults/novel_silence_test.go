package faults_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// silentMost is for how long nothing may move while something is wanted, before everybody must be told why.
const silentMost = 15 * time.Second

// wishes remembers when the prober's row in each target was changed.
type wishes struct {
	mu  sync.Mutex // guards all
	all map[string][]time.Time
}

func (x *wishes) wish(target string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all == nil {
		x.all = map[string][]time.Time{}
	}
	x.all[target] = append(x.all[target], time.Now())
}

// after returns when the row was first changed after a call, and forgets what was before; zero: it was not.
func (x *wishes) after(target string, call time.Time) time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.all[target]) > 0 && !x.all[target][0].After(call) {
		x.all[target] = x.all[target][1:]
	}
	if len(x.all[target]) == 0 {
		return time.Time{}
	}
	return x.all[target][0]
}

// watchSilence looks for targets that get no call though rows have changed for them, while a process is alive and the server
// is: status, doctor or readyz must say why.
func (w *world) watchSilence(quiet <-chan struct{}) {
	told := map[string]time.Time{} // when a target's silence was looked at last
	for {
		pass(time.Second, quiet)
		select {
		case <-quiet:
			return
		default:
		}
		for _, e := range w.endpoints {
			since := w.silentSince(e)
			if since.IsZero() || time.Since(since) < silentMost || time.Since(told[e.plan.Name]) < silentMost {
				continue
			}
			told[e.plan.Name] = time.Now()
			why, said := w.reasons(e.plan.Name)
			if !w.silentSince(e).Equal(since) {
				continue
			}
			w.count("silences", 1)
			w.note("%s gets no call, wanted since %s: %s", e.plan.Name, since.Format("15:04:05.000"), why)
			if why == "" {
				w.violate("silent", "%s gets no call, wanted since %s, and nothing says why:\n%s", e.plan.Name, since.Format("15:04:05.000"), said)
			}
		}
	}
}

// silentSince says since when a call is wanted that a target did not get, if it could be made; zero: it is not so.
func (w *world) silentSince(e *endpoint) time.Time {
	w.mu.Lock()
	drained := w.drained == e.plan.Name
	w.mu.Unlock()
	last := w.journal.lastFor(e.plan.Name)
	if drained || last.IsZero() {
		return time.Time{}
	}
	wished := w.wishes.after(e.plan.Name, last)
	if wished.IsZero() {
		return time.Time{}
	}
	now := time.Now()
	if !w.timeline.healthy(partServer, now.Add(-silentMost), now) || !w.agentWell(e.plan.Name, now.Add(-silentMost), now) {
		return time.Time{}
	}
	for _, r := range w.replicas {
		if p := r.process(); p.alive() && p.hasStarted() && w.timeline.healthy(awake(r), now.Add(-silentMost), now) && p.age() > silentMost {
			return wished
		}
	}
	return time.Time{}
}

// agentWell reports whether the agent of a target was well all the time between two times, if it has one.
func (w *world) agentWell(target string, from, to time.Time) bool {
	return !slices.ContainsFunc(w.hosts, func(h *host) bool { return h.calls(target) && !w.timeline.healthy(h.name, from, to) })
}

// explains is whether a finding of doctor can be why the prober's row, which is one of num, is not called for. An old transaction,
// a clock that went back or a resource that nobody has changed cannot.
const explains = `(check_name IN ('schema', 'leader', 'loops', 'targets', 'outbox') OR check_name IN ('capture', 'objects') AND finding ~ '\mnum\M')`

// reasons asks everybody who should know why a target gets no call, and returns what names a cause, and all that was said.
func (w *world) reasons(target string) (why, said string) {
	var causes, all []string
	ask := func(who, sql string, args ...any) {
		err := w.once(func(ctx context.Context, conn *pgx.Conn) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			rows, err := conn.Query(ctx, sql, args...)
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			for _, line := range lines {
				cause, text, _ := strings.Cut(line, "|")
				all = append(all, who+": "+text)
				if cause == "t" {
					causes = append(causes, who+": "+text)
				}
			}
			return err
		})
		if err != nil {
			all = append(all, fmt.Sprintf("%s: %v", who, err))
		}
	}
	ask("status", `SELECT format('%s|%s', s.state NOT IN ('ok', 'pending', 'syncing'), to_jsonb(s)) FROM reconciler.status AS s WHERE s.target = $1`, target)
	ask("doctor", `SELECT format('%s|%s: %s', NOT ok AND `+explains+` AND finding !~ $1, check_name, finding) FROM reconciler.doctor()`, w.aboutOthers(target))
	asked := slices.Clone(w.replicas)
	for _, h := range w.hosts {
		if h.calls(target) {
			asked = append(asked, h.replica)
		}
	}
	for _, r := range asked {
		code, text := r.process().ready(w.t.Context())
		all = append(all, fmt.Sprintf("readyz of %s: %d %s", r.name, code, text))
		if code != http.StatusOK && code != 0 {
			causes = append(causes, fmt.Sprintf("readyz of %s: %s", r.name, text))
		}
	}
	return strings.Join(causes, "; "), strings.Join(all, "\n")
}

// aboutOthers is a pattern of findings that are about other targets.
func (w *world) aboutOthers(target string) string {
	names := []string{nowhere}
	for _, name := range w.targetNames() {
		if name != target {
			names = append(names, name)
		}
	}
	return `\m(` + strings.Join(names, "|") + `)\M`
}

// lastFor returns when the last call for a target began.
func (j *journal) lastFor(target string) time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, c := range slices.Backward(j.calls) {
		if c.Object.Target == target {
			return c.Begin
		}
	}
	return time.Time{}
}

// age is for how long a process has run.
func (p *process) age() time.Duration { return time.Since(p.began) }

// ready asks a process whether it is; 0: it does not answer.
func (p *process) ready(ctx context.Context) (code int, said string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	p.mu.Lock()
	address := p.address
	p.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return 0, err.Error()
	}
	req.Close = true
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body) // what it says matters less than that it does
	return answer.StatusCode, strings.TrimSpace(string(text))
}
