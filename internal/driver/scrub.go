package driver

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// secretBytesMin is the length below which a value is no secret: hiding it would only garble texts.
const secretBytesMin = 4

// Scrubber replaces secrets in texts that others will read: a target may answer with what it was sent. The
// zero value replaces nothing.
type Scrubber struct {
	replacer *strings.Replacer
}

// NewScrubber returns a Scrubber for these values. Each is replaced by its label in brackets, such as
// [WEBHOOK_SECRET]; values of fewer than four bytes are left alone.
func NewScrubber(labels map[string]string) Scrubber {
	type pair struct{ value, label string }
	var pairs []pair
	for value, label := range labels {
		if len(value) >= secretBytesMin {
			pairs = append(pairs, pair{value, "[" + label + "]"})
		}
	}
	// The longest first: a secret that contains another one must not leave its remainder in the text.
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(len(b.value), len(a.value)), cmp.Compare(a.value, b.value))
	})
	var flat []string
	for _, p := range pairs {
		flat = append(flat, p.value, p.label)
	}
	return Scrubber{replacer: strings.NewReplacer(flat...)}
}

// Text returns the text without the secrets.
func (s Scrubber) Text(text string) string {
	if s.replacer == nil {
		return text
	}
	return s.replacer.Replace(text)
}

// Outcome returns the outcome with a scrubbed error text. The error's chain is kept only where nothing had to
// be hidden.
func (s Scrubber) Outcome(o Outcome) Outcome {
	if o.Err == nil {
		return o
	}
	if text := o.Err.Error(); s.Text(text) != text {
		o.Err = errors.New(s.Text(text))
	}
	return o
}

// Snippet makes foreign text fit for an error: one line of valid UTF-8 without control characters, at most
// limit bytes of it, with "..." at the end where something was cut. Scrub the text before: half a secret that a
// cut leaves behind is not found any more.
func Snippet(text []byte, limit int) string {
	line := oneLine(text[:min(len(text), limit)])
	if len(line) <= limit && len(text) <= limit {
		return line
	}
	cut := min(len(line), max(limit-len(ellipsis), 0))
	for cut > 0 && cut < len(line) && !utf8.RuneStart(line[cut]) {
		cut--
	}
	return line[:cut] + ellipsis
}

// SnippetTail is Snippet for the end of the text.
func SnippetTail(text []byte, limit int) string {
	line := oneLine(text[max(len(text)-limit, 0):])
	if len(line) <= limit && len(text) <= limit {
		return line
	}
	cut := max(len(line)-max(limit-len(ellipsis), 0), 0)
	for cut < len(line) && !utf8.RuneStart(line[cut]) {
		cut++
	}
	return ellipsis + line[cut:]
}

const ellipsis = "..."

func oneLine(text []byte) string {
	fields := strings.FieldsFunc(strings.ToValidUTF8(string(text), "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	})
	return strings.Join(fields, " ")
}
