// Command mutants takes one mechanism of the product out at a time, in a copy of the tree, and runs the tests that should
// notice. A mutant that no test notices fails the run: the mechanism is not proven.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx)
	stop()
	os.Exit(code)
}

func run(ctx context.Context) int {
	only := flag.String("run", "", "regular expression: which mutants, by name")
	worlds := flag.Int("worlds", 0, "how many worlds to try on each mutant too; 0: none")
	baseline := flag.Bool("baseline", true, "first see the tests pass without a mutant")
	write := flag.Bool("write", false, "record the results in results.json and the table in docs/testing.md")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return failed(err)
	}
	var chosen []Mutant
	for _, m := range All() {
		if pattern.MatchString(m.Name) {
			chosen = append(chosen, m)
		}
	}
	lab, err := newLab(ctx, ".")
	if err != nil {
		return failed(err)
	}
	defer lab.close()
	if *baseline {
		if err := lab.baseline(ctx, chosen); err != nil {
			return failed(err)
		}
	}
	note := func(string, Result) error { return nil }
	if *write {
		note = func(name string, r Result) error { return record(".", name, r) }
	}
	survivors, err := tryAll(ctx, lab, chosen, *worlds, note)
	if err != nil {
		return failed(err)
	}
	_, _ = fmt.Fprintf(os.Stdout, "%d of %d mutants caught\n", len(chosen)-len(survivors), len(chosen))
	if len(survivors) > 0 {
		return failed(fmt.Errorf("NOT CAUGHT: %s", strings.Join(survivors, ", ")))
	}
	return 0
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, "mutants:", err)
	return 1
}

// tryAll tries mutants one after the other, and names those that nothing caught.
func tryAll(ctx context.Context, lab *lab, mutants []Mutant, worlds int, note func(string, Result) error) (survivors []string, err error) {
	for _, m := range mutants {
		result, err := lab.try(ctx, m, worlds)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		if err := note(m.Name, result); err != nil {
			return nil, err
		}
		said := "NOT CAUGHT"
		if len(result.CaughtBy) > 0 {
			said = fmt.Sprintf("caught by %s in %.0f s", strings.Join(result.tests(), ", "), result.Seconds)
		} else {
			survivors = append(survivors, m.Name)
		}
		if result.WorldsTried > 0 {
			said += "; worlds: " + result.worlds()
		}
		_, _ = fmt.Fprintf(os.Stdout, "%s %-28s %s\n", time.Now().UTC().Format(time.TimeOnly), m.Name, said)
	}
	return survivors, nil
}
