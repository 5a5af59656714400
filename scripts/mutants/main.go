// Command mutants takes one mechanism of the product out at a time, in a copy of the tree, and runs the tests that must
// notice. A mutant that no test notices fails the run: the mechanism is not tested.
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
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	only := flag.String("run", "", "regular expression: the mutants to try, by name")
	baseline := flag.Bool("baseline", true, "run the tests without a mutant first")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if err := fit(".", mutants); err != nil {
		return err
	}
	var chosen []Mutant
	for _, m := range mutants {
		if pattern.MatchString(m.Name) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no mutant matches %s", *only)
	}
	lab, err := newLab(ctx, ".")
	if err != nil {
		return err
	}
	defer lab.close()
	if *baseline {
		if err := lab.baseline(ctx, chosen); err != nil {
			return err
		}
	}
	return tryAll(ctx, lab, chosen)
}

// tryAll tries mutants one after the other. The error names those that no test caught.
func tryAll(ctx context.Context, lab *lab, mutants []Mutant) error {
	var survivors []string
	for _, m := range mutants {
		began := time.Now()
		caughtBy, err := lab.try(ctx, m)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		result := "NOT CAUGHT"
		if len(caughtBy) > 0 {
			result = "caught by " + strings.Join(caughtBy, ", ")
		} else {
			survivors = append(survivors, m.Name)
		}
		_, _ = fmt.Fprintf(os.Stdout, "%-9s %-28s %s (%.0f s)\n", m.Guards, m.Name, result, time.Since(began).Seconds())
	}
	_, _ = fmt.Fprintf(os.Stdout, "%d of %d mutants caught\n", len(mutants)-len(survivors), len(mutants))
	if len(survivors) > 0 {
		return fmt.Errorf("NOT CAUGHT: %s", strings.Join(survivors, ", "))
	}
	return nil
}
