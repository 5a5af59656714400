package kubernetes

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(run{m}) }

// run stops the real cluster when the tests have ended, if there is one.
type run struct{ m *testing.M }

func (r run) Run() int {
	defer stopReal()
	return r.m.Run()
}
