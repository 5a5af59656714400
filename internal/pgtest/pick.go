package pgtest

// Pick returns the first value in the gate (`make test`) and the second one in the long tier: how many rounds or rows, which seed.
func Pick[T any](gate, long T) T {
	if Long {
		return long
	}
	return gate
}
