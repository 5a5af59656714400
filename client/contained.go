package client

import (
	"fmt"
	"runtime/debug"
)

// panicked is the error of a function of the user that has panicked.
type panicked struct {
	value any
	stack string
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// contained calls a function, and turns its panic into an error.
func contained(call func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicked{value: value, stack: string(debug.Stack())}
		}
	}()
	return call()
}
