package exec

import (
	"fmt"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
	"github.com/pgreconciler/reconciler/internal/driver/process"
)

// Kind is the driver `exec`.
func Kind() driver.Kind { return driver.Kind{Name: "exec", Open: open} }

func open(target string, opts driver.Options, env driver.Env) (driver.Driver, error) {
	r := options.New(opts)
	if !r.Has("command") {
		r.Problemf("command", `is required: a list that begins with a program, such as ["/usr/local/bin/apply"]`)
	}
	p := &program{target: target, args: process.ReadArgs(r, "command")}
	timeout := r.Duration("list_timeout", listTimeoutDefault, listTimeoutMin, listTimeoutMax)
	listing, health := process.ReadArgs(r, "list_command"), process.ReadArgs(r, "health")
	p.dir, p.environ, p.scrubber = process.ReadSurroundings(r, env.Getenv)
	if err := r.Err(); err != nil {
		return nil, err
	}
	p.surroundings = fmt.Sprintf("%q %q %v %v", p.args, p.dir, opts["env"], opts["env_from"]) // names of secrets, not their values
	lister, reporter := &listingProgram{program: p, list: listing, timeout: timeout, most: linesMax}, &healthProgram{of: p, args: health}
	switch {
	case listing != nil && health != nil:
		return struct {
			*listingProgram
			*healthProgram
		}{lister, reporter}, nil
	case listing != nil:
		return lister, nil
	case health != nil:
		return struct {
			*program
			*healthProgram
		}{p, reporter}, nil
	}
	return p, nil
}
