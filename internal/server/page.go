package server

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// pageEvery is how often the status page asks the database at most: anybody who reaches the port may ask for the page.
	pageEvery    = 2 * time.Second
	pagePatience = 3 * time.Second
	// pageApplies, pageEnded and pageTargets bound the page: applies that have not ended, that have, and targets of each.
	pageApplies = 20
	pageEnded   = 5
	pageTargets = 50
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// page is the status page. It needs no token, so it shows no key, no spec and no error text.
type page struct {
	server *Server

	mu      sync.Mutex // guards what follows
	asked   time.Time
	applies []applySection
	err     error
}

// applySection is an apply on the page.
type applySection struct {
	store.ApplyLinesRow

	FirstFailure string
	Lines        []store.ApplyTargetLinesRow
	Unshown      int64
}

// targetLine is a target of this process's config.
type targetLine struct{ Name, Driver, State string }

func (p *page) serve(w http.ResponseWriter, r *http.Request) {
	s := p.server
	applies, err := p.look(r.Context())
	trouble := ""
	if err != nil {
		trouble = "The database does not answer."
	}
	var text bytes.Buffer
	err = pageTemplate.Execute(&text, map[string]any{
		"Version": s.opts.Version, "Name": s.name, "Leads": s.leases.Status().Leader, "Targets": s.targetLines(), "Applies": applies, "Trouble": trouble,
	})
	if err != nil {
		http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// Nothing on it is to run or to be loaded, whatever a title says.
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	if trouble != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(text.Bytes())
}

// look returns what the database said in the last pageEvery, or asks. Others wait meanwhile for the same answer; who asked
// may go away without taking it from them.
func (p *page) look(ctx context.Context) ([]applySection, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.asked) < pageEvery {
		return p.applies, p.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pagePatience)
	defer cancel()
	failed := p.err != nil
	p.applies, p.err = readApplies(ctx, store.New(p.server.direct))
	p.asked = time.Now()
	if p.err != nil && !failed {
		p.server.log.Warn("status_page_unreadable", "error", p.err)
	}
	return p.applies, p.err
}

func readApplies(ctx context.Context, queries *store.Queries) ([]applySection, error) {
	rows, err := queries.ApplyLines(ctx, store.ApplyLinesParams{UnderWay: pageApplies, Ended: pageEnded})
	if err != nil {
		return nil, fmt.Errorf("read applies: %w", err)
	}
	ids := make([]int64, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	lines, err := queries.ApplyTargetLines(ctx, store.ApplyTargetLinesParams{Ids: ids, Most: pageTargets})
	if err != nil {
		return nil, fmt.Errorf("read targets of applies: %w", err)
	}
	byApply := map[int64][]store.ApplyTargetLinesRow{}
	for _, line := range lines {
		byApply[line.Apply] = append(byApply[line.Apply], line)
	}
	sections := make([]applySection, len(rows))
	for i, row := range rows {
		of := byApply[row.ID]
		sections[i] = applySection{ApplyLinesRow: row, FirstFailure: firstFailure(row, of), Lines: of, Unshown: max(row.Targets-int64(len(of)), 0)}
	}
	return sections, nil
}

// firstFailure says where an apply failed first, and who says why.
func firstFailure(a store.ApplyLinesRow, lines []store.ApplyTargetLinesRow) string {
	show := fmt.Sprintf("`reconciler apply show %d` says why", a.ID)
	if i := slices.IndexFunc(lines, func(line store.ApplyTargetLinesRow) bool { return line.Failed > 0 }); i >= 0 && lines[i].Target != "" {
		return fmt.Sprintf("%s; %s", lines[i].Target, show)
	}
	if a.Failed > 0 || a.State == "failed" {
		return show
	}
	return ""
}

// targetLines says what this process knows of its targets without a look.
func (s *Server) targetLines() []targetLine {
	owned, unsynced := s.leases.Status().Targets, s.unsynced()
	lines := make([]targetLine, len(s.opts.Config.Targets))
	for i, t := range s.opts.Config.Targets {
		state := "not owned by this process"
		switch {
		case slices.Contains(unsynced, t.Name):
			state = "owned; its first sync is not complete"
		case slices.Contains(owned, t.Name):
			state = "owned"
		}
		lines[i] = targetLine{Name: t.Name, Driver: t.Driver, State: state}
	}
	return lines
}
