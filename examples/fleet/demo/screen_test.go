package main

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScreenAlignsFiguresAndBreaksSentences(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newScreen(&out, nil)
	s.title("A step")
	s.figure("label", "%d of %s", 1, count(1234567))
	s.command("reconciler wait")
	s.quote("one\nThis sentence is longer than what stands on one line of the screen, so it goes on, indented, on the line that follows.\n")
	s.verdict(true, "ok: %s", counted(1, "file"))
	require.Equal(t, `
 1  A step
    label                       1 of 1,234,567
    $ reconciler wait
      one
      This sentence is longer than what stands on one line of the screen, so it goes on, indented, on the line that
        follows.

VERDICT: ok: 1 file
`, out.String())
}

func TestScreenSaysWhenNobodyReads(t *testing.T) {
	t.Parallel()
	var lost error
	newScreen(brokenPipe{}, func(err error) { lost = err }).say("x")
	require.EqualError(t, lost, "nobody reads what is printed: broken pipe")
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestFigures(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", -100: "-100", 1234567: "1,234,567"} {
		require.Equal(t, want, count(n))
	}
	require.Equal(t, "1,000 rows", counted(1000, "row"))
	require.Equal(t, "one\ntwo", abridged("one\ntwo", 1))
	require.Equal(t, "one\n... and 2 more lines", abridged("one\ntwo\nthree\n", 1))
	require.Equal(t, []string{"unbreakable"}, wrap("unbreakable", 4))

	var all latencies
	for n := range 200 {
		all = append(all, time.Duration(200-n)*time.Millisecond) // 200 ms to 1 ms
	}
	require.Equal(t, "p50 100.0 ms   p99 198.0 ms   max 200.0 ms", all.String())
	require.Equal(t, time.Second, latencies{time.Second}.at(0.5))
}

func TestVerdictNamesTheFirstDifference(t *testing.T) {
	t.Parallel()
	c := comparison{rows: 3, files: 4, edge: 1}
	require.EqualError(t, &differError{c}, "0 differences between 4 running rows and what is there (4 files, and 1 object wanted of a webhook): their numbers")
	c.differences = []string{"eu-west/topology/9.json: no running row wants it"}
	var out bytes.Buffer
	d := &demo{screen: newScreen(&out, nil)}
	d.failed(fmt.Errorf("step 8, a step: %w", &differError{c}))
	require.Equal(t, "\nVERDICT: FAILED: 1 difference between 4 running rows and what is there (4 files, and 1 object wanted of a webhook): "+
		"eu-west/topology/9.json: no running row wants it\n", out.String())
}
