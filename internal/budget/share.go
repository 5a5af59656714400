package budget

import (
	"slices"
	"sync"
)

// shareLeast is from how many bytes on it is worth while to lend more to a share that holds some.
const shareLeast = 64 << 10

// Shares lends bytes to many that may hold them for long, so that none of them keeps the others from theirs. Those that hold some may
// hold three quarters of all in equal parts; a quarter is for those that come new. It never blocks: a share that was refused is woken when
// it would get some.
type Shares struct {
	size int64

	mu      sync.Mutex // guards what follows, and what of a Share is not constant
	used    int64
	holders int64 // shares that hold some
	waiting []*Share
}

// NewShares returns Shares that lend so many bytes.
func NewShares(size int64) *Shares { return &Shares{size: size} }

// Share is what one of them holds. A nil Share has no bound.
type Share struct {
	of   *Shares
	wake func()
	held int64
}

// Share returns a new one. wake is called when Free, or Borrow, would no longer return what it did. It must not block.
func (s *Shares) Share(wake func()) *Share {
	if s == nil {
		return nil
	}
	return &Share{of: s, wake: wake}
}

// Used returns how many bytes are lent.
func (s *Shares) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// Free reports whether Borrow would lend something.
func (s *Share) Free() bool { return s == nil || s.borrow(0) > 0 }

// Borrow lends at most so many bytes. It returns how many, 0 for none. A share that holds nothing gets at least one byte,
// which stands for one object, whatever the others hold: each of them goes on.
func (s *Share) Borrow(most int64) int64 {
	if s == nil {
		return most
	}
	return s.borrow(most)
}

// borrow is Borrow; it takes nothing for 0.
func (s *Share) borrow(most int64) int64 {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	room := s.roomLocked()
	if room == 0 {
		if !slices.Contains(s.of.waiting, s) {
			s.of.waiting = append(s.of.waiting, s)
		}
		return 0
	}
	if most == 0 {
		return room
	}
	room = min(room, most)
	s.holdLocked(room)
	return room
}

func (s *Share) roomLocked() int64 {
	if s.held == 0 {
		return max(min(s.of.size/4*3/(s.of.holders+1), s.of.size-s.of.used), 1)
	}
	room := min(s.of.size/4*3/s.of.holders-s.held, s.of.size-s.of.used)
	if room < shareLeast {
		return 0
	}
	return room
}

func (s *Share) holdLocked(bytes int64) {
	held := s.held > 0
	s.held += bytes
	s.of.used += bytes
	if (s.held > 0) == held {
		return
	}
	if held {
		s.of.holders--
	} else {
		s.of.holders++
	}
}

// Add counts bytes that are held without having been borrowed or, with a minus, gives back some.
func (s *Share) Add(bytes int64) {
	if s == nil || bytes == 0 {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.addLocked(bytes)
}

// Close gives back everything.
func (s *Share) Close() {
	if s == nil {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.waiting = slices.DeleteFunc(s.of.waiting, func(other *Share) bool { return other == s })
	s.addLocked(-s.held)
}

func (s *Share) addLocked(bytes int64) {
	s.holdLocked(bytes)
	if bytes > 0 || len(s.of.waiting) == 0 {
		return
	}
	s.of.waiting = slices.DeleteFunc(s.of.waiting, func(other *Share) bool {
		if other.roomLocked() == 0 {
			return false
		}
		other.wake()
		return true
	})
}
