//go:build !pace

package pace

// Divisor is 1 in a plain build.
const Divisor = 1
