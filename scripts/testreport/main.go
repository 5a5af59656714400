// Command testreport judges a run of gotestsum by its events, and prints what a reader of the log wants to know: which
// tests were flaky, which were slow, and why the run fails. It closes holes of rerunning: a package that fails without a
// failed test, a data race, or a violation that an oracle reports fails the run although a rerun passed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("testreport", flag.ContinueOnError)
	flags.SetOutput(stderr)
	events := flags.String("events", "", "file that gotestsum --jsonfile wrote")
	flaky := flags.String("flaky", "", "directory for the first output of flaky tests")
	status := flags.Int("status", 0, "exit code of gotestsum")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	r, err := readFile(*events)
	if err == nil {
		err = r.keep(*flaky)
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "testreport:", err)
		return 2
	}
	r.print(stdout)
	if *status != 0 {
		return *status
	}
	if len(r.problems()) > 0 {
		return 1
	}
	return 0
}

func readFile(name string) (_ *report, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return read(file)
}

// keep writes the output of each flaky test's failed run to a file of its own.
func (r *report) keep(dir string) error {
	for _, t := range r.flaky() {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
		name := strings.NewReplacer("/", "_", " ", "_").Replace(t.id.String()) + ".log"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(t.firstFailure), 0o600); err != nil {
			return err
		}
	}
	return nil
}
