// Package streamtest helps to test programs that follow streams of reconciler: a Server in memory that is cut, reset and slowed down
// on demand, and Exercise, which checks the frames of any server.
package streamtest
