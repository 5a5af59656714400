package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/measure"
)

// say prints a line. A reader that is gone ends the demo.
func (d *demo) say(format string, args ...any) {
	if _, err := fmt.Fprintf(d.out, format+"\n", args...); err != nil {
		d.fail(fmt.Errorf("print to standard output: %w", err))
	}
}

// figure prints a labelled line of a step.
func (d *demo) figure(label, format string, args ...any) {
	d.say("    %-26s  %s", label, fmt.Sprintf(format, args...))
}

// quote prints a command, and what it printed.
func (d *demo) quote(command, output string) {
	d.say("    $ %s", command)
	for line := range strings.Lines(strings.TrimSpace(output)) {
		d.say("%s", strings.TrimRight("      "+line, " \n"))
	}
}

// spread returns percentiles of times.
func spread(times []time.Duration) string {
	sorted := slices.Sorted(slices.Values(times))
	return fmt.Sprintf("p50 %.1f ms   p99 %.1f ms   max %.1f ms", measure.Percentile(sorted, 0.5), measure.Percentile(sorted, 0.99), measure.Percentile(sorted, 1))
}
