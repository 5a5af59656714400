//go:build pace

package pace

// Divisor is what every interval is divided by.
const Divisor = 10
