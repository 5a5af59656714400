package queue

import "slices"

// Works notes what an object is in flight for: its delete, and as a part of which operation.
func (q *Queue[P, M]) Works(it *Item[P], deleted bool, operation int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it.deleted, it.operation = deleted, operation
}

// NotDeleted leaves out the objects whose delete is in flight.
func (q *Queue[P, M]) NotDeleted(items []*Item[P]) []*Item[P] {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := make([]*Item[P], 0, len(items))
	for _, it := range items {
		if f := q.flying[it.ObjectID]; f == nil || !f.item.deleted {
			left = append(left, it)
		}
	}
	return left
}

// FlyingFor returns how many objects are in flight as parts of an operation.
func (q *Queue[P, M]) FlyingFor(operation int64) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, f := range q.flying {
		if f.item.operation == operation {
			n++
		}
	}
	return n
}

// Done ends the flight of an object. Requests for it that arrived during the flight are queued.
func (q *Queue[P, M]) Done(it *Item[P]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	next := q.landLocked(it)
	if next != nil {
		q.appendLocked(next)
	}
	signal(q.ready)
}

// GoesOn reports whether something came for an object during its flight.
func (q *Queue[P, M]) GoesOn(it *Item[P]) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.flying[it.ObjectID]
	return f != nil && f.next != nil
}

// PutBack ends the flight of an object that was not settled: it goes back to the front of its lane.
func (q *Queue[P, M]) PutBack(it *Item[P]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if next := q.landLocked(it); next != nil {
		q.merge(it, next)
	}
	q.waiting[it.ObjectID] = it
	q.lanes[it.Lane] = slices.Insert(q.lanes[it.Lane], 0, it)
	q.size[it.Lane]++
	signal(q.ready)
}

// PutLast is PutBack to the end of the lane: what waits there already goes first.
func (q *Queue[P, M]) PutLast(it *Item[P]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if next := q.landLocked(it); next != nil {
		q.merge(it, next)
	}
	q.appendLocked(it)
}

// landLocked ends a flight and returns the request that arrived during it, nil for none.
func (q *Queue[P, M]) landLocked(it *Item[P]) (next *Item[P]) {
	next = q.flying[it.ObjectID].next
	it.deleted = false
	delete(q.flying, it.ObjectID)
	q.leaveWindowLocked(it)
	return next
}
