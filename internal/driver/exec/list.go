package exec

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	// lineBytesMax bounds a line of a listing: a key, its escapes, and a hash.
	lineBytesMax = 1 << 20
	// linesMax bounds the lines: of each key some bytes are kept until the end.
	linesMax = 10_000_000

	listTimeoutDefault = time.Minute
	listTimeoutMin     = 100 * time.Millisecond
	listTimeoutMax     = 10 * time.Minute
)

// listingProgram is a program with another one that lists what the target has.
type listingProgram struct {
	*program
	list    []string
	timeout time.Duration // between two lines
	most    int           // lines
}

// listMessage is what the list command reads. It names no resource: a command that ignored it would list the objects of all resources
// under each of them, and a sync would delete them as orphans.
type listMessage struct {
	Action string `json:"action"`
	Target string `json:"target"`
}

// listLine is one line that it writes.
type listLine struct {
	Resource string  `json:"resource"`
	Key      *string `json:"key"`
	Hash     string  `json:"hash"` // as in the message that applied the object; empty if it cannot tell
}

// List runs the list command once for all resources and reads its output while it runs. An exit status other than 0 makes the
// listing an error, also after every line was read.
func (p *listingProgram) List(ctx context.Context, _ []string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		err := p.eachLine(ctx, func(line []byte) error {
			listed, err := p.parseLine(line)
			if err != nil {
				return fmt.Errorf("%s: %w", filepath.Base(p.list[0]), err)
			}
			if !yield(listed, nil) {
				return errStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(driver.Listed{}, err)
		}
	}
}

// errStop ends a listing whose consumer has seen enough.
var errStop = errors.New("stop")

// eachLine runs the list command and calls take with every line, until it returns an error.
func (p *listingProgram) eachLine(ctx context.Context, take func([]byte) error) error {
	message, err := json.Marshal(listMessage{Action: "list", Target: p.target})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	reader, writer := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		command := p.command(p.list, message)
		command.Stdout = writer
		result, err := command.Run(ctx)
		if err != nil || result.Code != 0 {
			_ = writer.CloseWithError(p.said(p.list, result, err))
			return
		}
		_ = writer.Close()
	}()
	// In this order: the program may be waiting for its output to be read, or doing anything else.
	defer func() {
		cancel(nil)
		_ = reader.Close()
		<-ended
	}()
	lines := bufio.NewScanner(reader)
	lines.Buffer(nil, lineBytesMax)
	// It runs only while the program is waited for: whoever takes the lines may need longer.
	silence := time.AfterFunc(p.timeout, func() { cancel(fmt.Errorf("it wrote no line for %s (options.list_timeout)", p.timeout)) })
	defer silence.Stop()
	for n := 1; lines.Scan(); n++ {
		silence.Stop()
		if n > p.most {
			return fmt.Errorf("%s: more than %d lines", filepath.Base(p.list[0]), p.most)
		}
		if err := take(lines.Bytes()); err != nil {
			return err
		}
		silence.Reset(p.timeout)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("%s: a line of more than %d bytes", filepath.Base(p.list[0]), lineBytesMax)
	}
	return lines.Err()
}

func (p *program) parseLine(text []byte) (driver.Listed, error) {
	const shownMax = 100
	// A program may write what it was given.
	shown := func() string { return driver.Snippet([]byte(p.scrubber.Text(string(text))), shownMax) }
	var line listLine
	if err := json.Unmarshal(text, &line); err != nil || line.Key == nil || line.Resource == "" {
		return driver.Listed{}, fmt.Errorf(`a line is not {"resource": .., "key": .., "hash": ..}: %s`, shown())
	}
	listed := driver.Listed{Resource: line.Resource, Key: *line.Key, Unmarked: true}
	if line.Hash == "" {
		return listed, nil
	}
	raw, err := hex.DecodeString(line.Hash)
	if err != nil || len(raw) != len(driver.Hash{}) {
		return driver.Listed{}, fmt.Errorf("a hash is not 32 hexadecimal digits: %s", shown())
	}
	listed.Hashes = []driver.Hash{driver.Hash(raw)}
	return listed, nil
}
