package bench

// Refusal says why nothing is measured on a server, and what would help.
type Refusal struct {
	Text string
	Hint string
}

func (r *Refusal) Error() string { return r.Text }
