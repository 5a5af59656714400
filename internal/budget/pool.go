package budget

import (
	"slices"
	"sync"
)

// Pool lends bytes to many, first come, first served.
type Pool struct {
	size int64

	mu      sync.Mutex // guards what follows
	used    int64
	waiting []*Loan
}

// Loan is a request for bytes. Every Loan ends with Return.
type Loan struct {
	Ready chan struct{} // closed when the bytes are taken

	pool  *Pool
	bytes int64
	taken bool
}

// NewPool returns a pool that lends so many bytes.
func NewPool(size int64) *Pool { return &Pool{size: size} }

// Take requests bytes. A request for more than the pool has is one for all of it.
func (p *Pool) Take(bytes int64) *Loan {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &Loan{Ready: make(chan struct{}), pool: p, bytes: min(bytes, p.size)}
	p.waiting = append(p.waiting, l)
	p.lendLocked()
	return l
}

// TryTake takes bytes if less than half of the pool is lent. It returns nil otherwise.
func (p *Pool) TryTake(bytes int64) *Loan {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) > 0 || p.used+bytes > p.size/2 {
		return nil
	}
	p.used += bytes
	return &Loan{pool: p, bytes: bytes, taken: true}
}

// Set replaces what was asked for by what turned out to be needed.
func (l *Loan) Set(bytes int64) {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.pool.used += bytes - l.bytes
	l.bytes = bytes
	l.pool.lendLocked()
}

// Return gives the bytes back, or withdraws the request.
func (l *Loan) Return() {
	p := l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.taken {
		p.used -= l.bytes
	} else {
		p.waiting = slices.DeleteFunc(p.waiting, func(other *Loan) bool { return other == l })
	}
	l.bytes, l.taken = 0, true
	p.lendLocked()
}

func (p *Pool) lendLocked() {
	for len(p.waiting) > 0 && p.used+p.waiting[0].bytes <= p.size {
		l := p.waiting[0]
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
		p.used += l.bytes
		l.taken = true
		close(l.Ready)
	}
}

// Used returns how many bytes are lent.
func (p *Pool) Used() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Waited reports whether somebody waits for bytes.
func (p *Pool) Waited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) > 0
}

// HalfLent reports whether at least half of the bytes are lent.
func (p *Pool) HalfLent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used >= p.size/2
}
