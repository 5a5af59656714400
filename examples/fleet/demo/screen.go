package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// labelWidth is the width of what stands before the figures.
	labelWidth = 26
	// textWidth is where long sentences of the product are broken.
	textWidth = 110
)

var errUnread = errors.New("nobody reads what is printed")

// screen is where people read.
type screen struct {
	mu     sync.Mutex // guards w
	w      io.Writer
	lost   func(error) // told when nobody reads any more
	colour bool
	step   int
}

func newScreen(w io.Writer, lost func(error)) *screen {
	return &screen{w: w, lost: lost, colour: isTerminal(w) && os.Getenv("NO_COLOR") == ""}
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintf(s.w, format+"\n", args...); err != nil {
		s.lost(fmt.Errorf("%w: %w", errUnread, err))
	}
}

// title begins a numbered step.
func (s *screen) title(text string) {
	s.step++
	s.say("\n%s", s.paint("1", fmt.Sprintf("%2d  %s", s.step, text)))
}

// figure prints one aligned line.
func (s *screen) figure(label, format string, args ...any) {
	for _, part := range wrap(fmt.Sprintf(format, args...), textWidth) {
		s.say("    %-*s  %s", labelWidth, label, part)
		label = ""
	}
}

// command prints what a person would type, and quote what it answered.
func (s *screen) command(text string) { s.say("    %s", s.paint("36", "$ "+text)) }

func (s *screen) quote(text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		for n, part := range wrap(strings.TrimRight(line, "\n"), textWidth) {
			s.say("      %s%s", strings.Repeat("  ", min(n, 1)), part)
		}
	}
}

// wrap breaks a line between words.
func wrap(line string, width int) []string {
	var parts []string
	for len(line) > width {
		at := strings.LastIndexByte(line[:width+1], ' ')
		if at <= 0 {
			break
		}
		parts = append(parts, line[:at])
		line = line[at+1:]
	}
	return append(parts, line)
}

// verdict prints the last line, in green or red.
func (s *screen) verdict(ok bool, format string, args ...any) {
	colour := "1;31"
	if ok {
		colour = "1;32"
	}
	s.say("\n%s", s.paint(colour, "VERDICT: "+fmt.Sprintf(format, args...)))
}

func (s *screen) paint(code, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// count writes a number with its thousands apart.
func count(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// counted is a number with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return count(n) + " " + noun + "s"
}

// seconds and millis write durations in one unit each, so that figures below each other can be compared.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

func millis(d time.Duration) string { return fmt.Sprintf("%5.1f ms", float64(d.Microseconds())/1000) }

// abridged keeps the first lines of a text.
func abridged(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	if len(all) <= lines+1 {
		return text
	}
	return strings.Join(all[:lines], "\n") + "\n... and " + counted(len(all)-lines, "more line")
}
