//go:build faults

package crash

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

// The environment of a process that is to break somewhere.
const (
	variable    = "RECONCILER_CRASH"
	logVariable = "RECONCILER_CRASH_LOG"
)

// armed is what the environment of this process asks for.
var armed = fromEnvironment()

// fromEnvironment refuses to start a process that was told something else than it would do.
func fromEnvironment() *arms {
	text, log := os.Getenv(variable), os.Getenv(logVariable)
	orders, err := parse(text)
	if err != nil {
		fmt.Fprintf(os.Stderr, "reconciler: %s: %s\n", variable, err)
		os.Exit(2)
	}
	// The config refuses variables that it does not know, and programs of the driver exec are not meant.
	_, _ = os.Unsetenv(variable), os.Unsetenv(logVariable)
	return &arms{orders: orders, log: log}
}

// Point does what the environment asks for at this place, if anything.
func Point(name Name) { armed.reach(name) }

// arms are orders and how often their points were reached.
type arms struct {
	log string // path of the file that is told of what fires; empty: none is

	mu     sync.Mutex // guards orders
	orders []*order
}

func (a *arms) reach(name Name) {
	for _, do := range a.due(name) {
		if a.log != "" {
			note(a.log, do.text)
		}
		do.act()
	}
}

// due counts the visit, and returns the orders whose turn it is.
func (a *arms) due(name Name) []*order {
	a.mu.Lock()
	defer a.mu.Unlock()
	var due []*order
	for _, o := range a.orders {
		if o.name != name {
			continue
		}
		if o.left--; o.left == 0 {
			due = append(due, o)
		}
	}
	return due
}

// note writes down that an order was carried out. Whoever asked for it must know, so that a file that cannot be written
// ends the process too.
func note(path, text string) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(text + "\n")
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		panic(fmt.Sprintf("%s: %v", logVariable, err))
	}
}

func (o *order) act() {
	switch o.action {
	case actionKill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // not one step further
	case actionStop:
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	default:
		panic("crash point " + o.text)
	}
}
