package queue

// restRows bounds the objects that rest.
const restRows = queueRows

// Rest puts an object in flight aside until Wake. What comes for it meanwhile joins it. It returns false when too many rest.
func (q *Queue[P, M]) Rest(it *Item[P]) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.resting) >= restRows {
		return false
	}
	if next := q.landLocked(it); next != nil {
		q.merge(it, next)
	}
	q.resting[it.ObjectID] = it
	signal(q.Rests)
	signal(q.ready)
	return true
}

// Wake puts the objects of a resource that rest, and need not wait any more, behind those that wait in their lanes. It
// returns how many.
func (q *Queue[P, M]) Wake(resourceID int32, waits func(key string) bool) (woken int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, it := range q.resting {
		if id.ResourceID != resourceID || waits(id.Key) {
			continue
		}
		delete(q.resting, id)
		q.appendLocked(it)
		woken++
	}
	return woken
}

// RestingResources returns the resources of which objects rest.
func (q *Queue[P, M]) RestingResources() map[int32]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	resources := map[int32]bool{}
	for id := range q.resting {
		resources[id.ResourceID] = true
	}
	return resources
}
