// Package process runs programs on behalf of drivers: with an environment that holds only what was asked for,
// with bounded memory for what they print, and never longer than the call's context. A program runs in a
// process group of its own, and no member of the group outlives the call.
package process
