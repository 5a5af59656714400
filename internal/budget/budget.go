package budget

import "sync/atomic"

// Budget is what a process may hold. It is made by New.
type Budget struct {
	Frames     int64 // bytes of frames that are kept
	FramesUsed atomic.Int64
	Pages      *Pool   // of watchers
	Calls      *Shares // what owners of targets have read, until it is called for and recorded
}

// New divides a number of bytes into three equal parts.
func New(bytes int64) *Budget {
	return &Budget{Frames: bytes / 3, Pages: NewPool(bytes / 3), Calls: NewShares(bytes / 3)}
}

// Part is what is used of a part of a budget, and how much that may be.
type Part struct {
	Name string
	Most int64
	Used func() int64
}

// Parts returns all of them.
func (b *Budget) Parts() []Part {
	return []Part{
		{"frames", b.Frames, b.FramesUsed.Load},
		{"pages", b.Pages.size, b.Pages.Used},
		{"calls", b.Calls.size, b.Calls.Used},
	}
}
