package config

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzDuration: a duration that is accepted is within its bounds, and what is printed of it is accepted as the same.
func FuzzDuration(f *testing.F) {
	for _, seed := range []string{"", "0", "off", "30s", "1h30m", "10m0s", "1h0m0s", "1h0m1s", "-1s", "1e3s", "9999999h", "1ns", "1.5h", "٣s", ".5s", "5", "100ms", "1µs", "+2s"} {
		f.Add(seed)
	}
	const lo, hi = time.Millisecond, 24 * time.Hour
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range []codec[time.Duration]{durationIn(lo, hi), durationOrOff(lo, hi)} {
			for _, n := range []*node{textNode(text), stringNode(position{}, text)} {
				d, err := c.parse(n)
				if err != nil {
					require.Zero(t, d)
					continue
				}
				require.True(t, d >= lo && d <= hi || d == 0 && text == off, "%q is %s", text, d)
				again, err := c.parse(textNode(c.format(d)))
				require.NoError(t, err)
				require.Equal(t, d, again)
			}
		}
	})
}

// FuzzVariable: a variable of the environment is refused with a sentence, or what is printed of it means the same again.
func FuzzVariable(f *testing.F) {
	reg, _ := fakeRegistry()
	names := []string{}
	for _, k := range newLoader(LoadOptions{Registry: reg}).globals {
		names = append(names, envPrefix+envPart(k.path))
	}
	for i := range names {
		for _, value := range []string{"1", "0.5", "30s", "true", "off", "info", "json", ":9090", "[::1]:1", "a b", "-1", "1e9", "NaN", "\x00", "postgres://u:p@h/db"} {
			f.Add(uint8(i), value)
		}
	}
	f.Fuzz(func(t *testing.T, at uint8, value string) {
		name := names[int(at)%len(names)]
		load := func(value string) (*loader, error) {
			l := newLoader(LoadOptions{Registry: reg, Environ: []string{name + "=" + value}})
			l.applyEnv()
			return l, l.problems.err()
		}
		l, err := load(value)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		if value == "" || strings.HasSuffix(name, "URL") {
			return // counts as not set; is printed without its password
		}
		for _, k := range l.globals {
			if envPrefix+envPart(k.path) == name {
				shown := k.get(l.cfg)
				again, err := load(shown)
				require.NoError(t, err, "%s=%q is shown as %q", name, value, shown)
				require.Equal(t, shown, k.get(again.cfg))
			}
		}
	})
}
