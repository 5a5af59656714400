package stream

// Waiting returns how many calls wait for the next transaction.
func (p *Publisher) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}
