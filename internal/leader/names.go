package leader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/store"
)

// targetNames bounds how many unknown targets a resource may make visible at once.
const targetNames = 1000

// registrar makes targets visible that rows name and no config has. A name that cannot be registered fails alone.
type registrar struct {
	steward *Steward

	mu      sync.Mutex      // guards what follows
	known   map[string]bool // names with a row
	refused map[string]bool // names whose row could not be written, and may be later
}

// register writes the rows that are missing. Its error says that the database is out of reach.
func (r *registrar) register(ctx context.Context, names []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	names = slices.DeleteFunc(names, func(name string) bool { return r.known[name] || !desired.TargetFits(name) })
	if len(names) == 0 {
		return nil
	}
	queries := store.New(r.steward.Pool)
	err := queries.TargetsInsert(ctx, names)
	switch {
	case err == nil:
		r.registeredLocked(names...)
		return nil
	case ctx.Err() != nil || database.IsUnavailable(err):
		return fmt.Errorf("make targets visible that rows name: %w", err)
	}
	for _, name := range names { // which of them it is
		switch err := queries.TargetsInsert(ctx, []string{name}); {
		case err == nil:
			r.registeredLocked(name)
		case ctx.Err() != nil || database.IsUnavailable(err):
			return fmt.Errorf("make targets visible that rows name: %w", err)
		default:
			r.refuseLocked(name, err)
		}
	}
	return nil
}

func (r *registrar) registeredLocked(names ...string) {
	for _, name := range names {
		r.known[name] = true
		delete(r.refused, name)
	}
}

// refuseLocked keeps a name for later, unless it is the name that is wrong: no config can have it.
func (r *registrar) refuseLocked(name string, err error) {
	shown := strings.ToValidUTF8(name[:min(len(name), 100)], "")
	code := database.Code(err)
	if strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23") || strings.HasPrefix(code, "54") {
		r.known[name] = true
		r.steward.Logger.Error("target_not_registered", "target", shown, "bytes", len(name), "error", err, "effect", "rows that name it are applied nowhere")
		return
	}
	if !r.refused[name] {
		r.steward.Logger.Warn("target_not_registered", "target", shown, "error", err, "effect", "it is tried again")
	}
	r.refused[name] = true
}

// turn tries again what could not be registered.
func (r *registrar) turn(ctx context.Context) (time.Duration, error) {
	r.mu.Lock()
	clear(r.known)
	names := slices.Collect(maps.Keys(r.refused))
	r.mu.Unlock()
	if err := r.register(ctx, names); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.refused) > 0 {
		return 0, errors.New("some targets that only rows name cannot be made visible")
	}
	return namesEvery, nil
}

func (s *Steward) nameTargets(ctx context.Context, resources []*desired.Resource) error {
	for _, r := range resources {
		names, err := r.Targets(ctx, database.Rows(s.rows()), targetNames)
		if err != nil {
			if ctx.Err() != nil || database.IsUnavailable(err) {
				return err
			}
			s.Logger.Warn("targets_unreadable", "resource", r.Name, "error", err)
			continue
		}
		if err := s.names.register(ctx, names); err != nil {
			return err
		}
	}
	return nil
}
