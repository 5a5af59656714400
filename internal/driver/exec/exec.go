package exec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/process"
)

// stderrShownMax is how much of the end of standard error stands in an error.
const stderrShownMax = 1000

// Exit statuses as sysexits.h names them.
const (
	exitUsage       = 64
	exitDataErr     = 65
	exitUnavailable = 69
	exitTempFail    = 75
	exitConfig      = 78
)

// program is a target that a program stands for.
type program struct {
	target   string
	args     []string
	dir      string
	environ  []string
	scrubber driver.Scrubber

	surroundings string // what distinguishes two targets with this program
}

// Place returns the command line, where it runs, and the variables that the options give it: the program may tell targets apart by
// the message that it reads, or not.
func (p *program) Place() driver.Place {
	return driver.Place{
		Option: "command", Name: p.args[0], Detail: p.surroundings,
		Apart: "Give each an argument or a variable of its own, such as options.env with the name of the target",
	}
}

// Apply runs the program with the object.
func (p *program) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	message, err := driver.ApplyMessage(obj)
	if err != nil {
		return driver.Terminal(err)
	}
	return p.call(ctx, message)
}

// Delete runs the program with the object's name.
func (p *program) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	message, err := driver.DeleteMessage(ref)
	if err != nil {
		return driver.Done() // Apply refuses such a name, so there is nothing
	}
	return p.call(ctx, message)
}

// Close has nothing to release: no program outlives its call.
func (p *program) Close(context.Context) error { return nil }

func (p *program) call(ctx context.Context, message []byte) driver.Outcome {
	result, err := p.command(p.args, message).Run(ctx)
	if err == nil && result.Code == 0 {
		return driver.Done()
	}
	return p.failure(result, p.said(p.args, result, err), err)
}

func (p *program) command(args []string, message []byte) process.Command {
	return process.Command{Args: args, Dir: p.dir, Env: p.environ, Stdin: append(message, '\n')}
}

// failure classifies a run that did not go well.
func (p *program) failure(result process.Result, said, err error) driver.Outcome {
	var startErr *process.StartError
	switch {
	case errors.As(err, &startErr):
		return driver.Unreachable(said) // no object can be applied without the program
	case err != nil:
		return driver.Backoff(said)
	}
	switch result.Code {
	case exitUsage, exitDataErr, exitConfig:
		return driver.Terminal(said)
	case exitUnavailable:
		return driver.Unreachable(said)
	case exitTempFail:
		if after := retryAfter(result.Stdout); after > 0 {
			return driver.RetryAfter(after, said)
		}
	}
	return driver.Backoff(said)
}

// said is the error of a run: how it ended, and the end of what the program wrote about it.
func (p *program) said(args []string, result process.Result, err error) error {
	if err == nil {
		err = errors.New(result.String())
	}
	err = fmt.Errorf("%s: %w", filepath.Base(args[0]), err)
	// Scrubbed before it is shortened: half a secret would not be found.
	stderr := []byte(p.scrubber.Text(string(result.Stderr)))
	if shown := driver.SnippetTail(stderr, stderrShownMax); shown != "" {
		err = fmt.Errorf("%w: %s", err, shown)
	}
	return err
}

// retryAfter finds the last line "retry-after: N" in the output: seconds, or a duration with its unit. It
// returns 0 for none, nonsense and less than nothing.
func retryAfter(stdout []byte) time.Duration {
	var found time.Duration
	for line := range bytes.Lines(stdout) {
		name, value, ok := strings.Cut(string(bytes.TrimSpace(line)), ":")
		if !ok || !strings.EqualFold(name, "retry-after") {
			continue
		}
		value = strings.TrimSpace(value)
		if _, err := strconv.ParseUint(value, 10, 64); err == nil {
			value += "s"
		}
		d, err := time.ParseDuration(value)
		if err != nil {
			d = 0
		}
		found = max(d, 0)
	}
	return found
}
