package exec

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/process"
)

const fuzzedSecret = "s3cr3t-t0ken"

func fuzzedProgram() *program {
	return &program{args: []string{"/bin/apply"}, scrubber: driver.NewScrubber(map[string]string{fuzzedSecret: "TOKEN"})}
}

// FuzzResult: however a program ends and whatever it writes, the outcome is one that the ledger can hold.
func FuzzResult(f *testing.F) {
	for _, stdout := range []string{
		"", "retry-after: 30\n", "Retry-After:2m", "retry-after: 90h\r\n", "retry-after: -5", "retry-after: +5", "retry-after: soon", "retry-after: 99999999999999999999",
		"retry-after: 9223372036854775807", "retry-after: 1e3s", "retry-after: 0.5", "retry-after: 1ns\nretry-after:\n", "retry-after\x00: 3",
	} {
		f.Add(75, []byte(stdout), []byte("\xff"), []byte("\x00"), false)
	}
	for _, code := range []int{-1, 0, 1, 64, 65, 69, 75, 77, 78, 127, 255} {
		f.Add(code, []byte("retry-after: 1"), []byte(strings.Repeat("é", 600)), []byte(strings.Repeat("\x80", 2000)), code%2 == 0)
	}
	f.Fuzz(func(t *testing.T, code int, stdout, before, behind []byte, stopped bool) {
		if code == 0 {
			return // done, whatever was written
		}
		var err error
		if stopped {
			err = errors.New("stopped")
		}
		p := fuzzedProgram()
		result := process.Result{Code: code, Stdout: stdout, Stderr: append(append(bytes.Clone(before), fuzzedSecret...), behind...)}
		outcome := p.failure(result, p.said(p.args, result, err), err)
		require.NotEqual(t, driver.VerdictDone, outcome.Verdict)
		require.Equal(t, outcome.Verdict == driver.VerdictRetryAfter, outcome.After > 0)
		require.LessOrEqual(t, outcome.After, time.Hour)
		require.False(t, outcome.Verdict == driver.VerdictRetryAfter && (code != exitTempFail || stopped))
		requirePresentable(t, outcome.Err.Error())
	})
}

// FuzzListLine: a line of a listing is an object's name or an error that can be shown.
func FuzzListLine(f *testing.F) {
	for _, line := range []string{
		`{"key": "a"}`, `{"key": "a", "hash": "00112233445566778899aabbccddeeff"}`, `{"key": null}`, `{"key": "a", "hash": "zz"}`, `{"key": "\ud800"}`, `[]`, "", "x", `{"KEY": "a"}`,
		`{"key": "\u0000"}`, `{"key": "a", "hash": "` + fuzzedSecret + `"}`, "{\"key\": \"\xff\"}", fuzzedSecret,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		listed, err := fuzzedProgram().parseLine(line)
		if err != nil {
			require.Equal(t, driver.Listed{}, listed)
			requirePresentable(t, err.Error())
			return
		}
		require.True(t, utf8.ValidString(listed.Key), "%q", listed.Key)
		require.LessOrEqual(t, len(listed.Hashes), 1)
	})
}

// requirePresentable checks that a text can stand in the ledger and in a terminal. C69: and that it shows no secret.
func requirePresentable(t *testing.T, text string) {
	t.Helper()
	require.NotEmpty(t, text)
	require.LessOrEqual(t, len(text), stderrShownMax+100)
	require.True(t, utf8.ValidString(text), "%q", text)
	require.Equal(t, -1, strings.IndexFunc(text, unicode.IsControl), "%q", text)
	require.NotContains(t, text, fuzzedSecret)
}
