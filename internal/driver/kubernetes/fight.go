package kubernetes

import (
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	// repairsMost is how often a member may be repaired within repairsWithin before it is a fight.
	repairsMost   = 5
	repairsWithin = time.Minute
	// A fight pauses repairs, twice as long each time: fightPauseLeast to fightPauseMost.
	fightPauseLeast = time.Minute
	fightPauseMost  = time.Hour
)

// fights are members that others change again each time they are repaired.
type fights struct {
	mu   sync.Mutex // guards open
	open map[place]*fight
}

type fight struct {
	repairs []time.Time // of the last minute
	total   int
	blame   string
	pause   time.Duration // 0: it is no fight yet
	until   time.Time
}

// paused returns an outcome that is not done while a member is not to be repaired.
func (f *fights) paused(at place) driver.Outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.open[at]; one != nil && time.Until(one.until) > 0 {
		return driver.RetryAfter(time.Until(one.until), one.reason(at))
	}
	return driver.Done()
}

func (one *fight) reason(at place) error {
	return fmt.Errorf("%s: it was repaired %d times, and each time %s: repairs pause for %s: take the field out of the manifest, "+
		"list it in options.ignore, or stop the other", at, one.total, one.blame, one.pause)
}

// repaired counts a repair, and returns why repairs pause from now on; nil: they do not. What was left alone for twice the pause is no
// fight any more.
func (f *fights) repaired(at place, blame string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for at, one := range f.open {
		if now.Sub(one.repairs[len(one.repairs)-1]) > max(repairsWithin, 2*one.pause) {
			delete(f.open, at)
		}
	}
	one := f.open[at]
	if one == nil {
		one = &fight{}
		f.open[at] = one
	}
	one.repairs = append(slices.DeleteFunc(one.repairs, func(t time.Time) bool { return now.Sub(t) > repairsWithin }), now)
	one.total++
	one.blame = blame
	if one.pause == 0 && len(one.repairs) <= repairsMost {
		return nil
	}
	one.pause = min(max(2*one.pause, fightPauseLeast), fightPauseMost)
	one.until = now.Add(one.pause)
	return one.reason(at)
}

// pausing returns how many fights pause repairs at the moment, and which is the first.
func (f *fights) pausing() (n int, first error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var least place
	for at, one := range f.open {
		if time.Until(one.until) <= 0 {
			continue
		}
		if n++; n == 1 || at.compare(least) < 0 {
			least = at
		}
	}
	if n > 0 {
		first = f.open[least].reason(least)
	}
	return n, first
}

// trouble returns the fights that pause repairs at the moment.
func (f *fights) trouble() error {
	n, first := f.pausing()
	if n > 1 {
		return fmt.Errorf("%d objects are changed by others each time they are repaired; the first: %w", n, first)
	}
	return first
}

// blame names who has changed a member, and a field: the manager that owned what we own again since it was repaired.
func (w *work) blame(before, after *metav1.PartialObjectMetadata) string {
	if before == nil {
		return "somebody deleted it"
	}
	lost := fieldsIn(w.entryOf(after)).Difference(fieldsIn(w.entryOf(before)))
	field := "a field"
	lost.Iterate(func(p fieldpath.Path) {
		if field == "a field" {
			field = p.String()
		}
	})
	var newest *metav1.ManagedFieldsEntry
	for i, entry := range before.ManagedFields {
		if entry.Manager == w.manager {
			continue
		}
		if !fieldsIn(&before.ManagedFields[i]).Intersection(lost).Empty() {
			return fmt.Sprintf("%s changed %s", entry.Manager, field)
		}
		if newest == nil || newest.Time.Before(entry.Time) {
			newest = &before.ManagedFields[i]
		}
	}
	if newest == nil {
		return "somebody removed " + field
	}
	return fmt.Sprintf("%s removed %s", newest.Manager, field) // it has no owner now: the last to write is the likely one
}

func fieldsIn(entry *metav1.ManagedFieldsEntry) *fieldpath.Set {
	set := fieldpath.NewSet()
	if entry != nil && entry.FieldsV1 != nil {
		_ = set.FromJSON(entry.FieldsV1.GetRawReader()) // what cannot be read is no field
	}
	return set
}
