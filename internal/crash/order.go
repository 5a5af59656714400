//go:build faults

package crash

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	actionKill  = "kill"
	actionStop  = "stop"
	actionPanic = "panic"
)

// order is one part of the variable: what to do where, and when.
type order struct {
	text   string
	name   Name
	action string
	left   int // visits until it is due
}

// parse reads the variable: name:action or name:action:n, several separated by commas.
func parse(text string) ([]*order, error) {
	var orders []*order
	for part := range strings.SplitSeq(text, ",") {
		if text == "" {
			break
		}
		o, err := parseOrder(part)
		if err != nil {
			return nil, err
		}
		orders = append(orders, o)
	}
	return orders, nil
}

func parseOrder(text string) (*order, error) {
	fields := strings.Split(text, ":")
	if len(fields) < 2 || len(fields) > 3 {
		return nil, fmt.Errorf("%q is not of the form point:action or point:action:n", text)
	}
	o := &order{text: text, name: Name(fields[0]), action: fields[1], left: 1}
	if !slices.ContainsFunc(All(), func(p Place) bool { return p.Name == o.name }) {
		return nil, fmt.Errorf("there is no point %q", fields[0])
	}
	if !slices.Contains([]string{actionKill, actionStop, actionPanic}, o.action) {
		return nil, fmt.Errorf("there is no action %q: it is %s, %s or %s", o.action, actionKill, actionStop, actionPanic)
	}
	if len(fields) == 3 {
		n, err := strconv.Atoi(fields[2])
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q in %q is not the number of a visit", fields[2], text)
		}
		o.left = n
	}
	return o, nil
}
