package watch

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A group has every change after the version that it begins at, and reports when some are gone.
func TestGroupKnowsWhatItHas(t *testing.T) {
	t.Parallel()
	g := newGroups().join(filter{}, 10)
	g.frames = []frame{{version: 11}, {version: 14}, {version: 15}}
	after := func(version int64, most int) []int64 {
		frames, ok := g.after(version, most)
		if !ok {
			return nil
		}
		versions := []int64{}
		for _, f := range frames {
			versions = append(versions, f.version)
		}
		return versions
	}
	require.Nil(t, after(9, 9))
	require.Equal(t, []int64{11, 14, 15}, after(10, 9))
	require.Equal(t, []int64{14}, after(13, 1))
	require.Equal(t, []int64{}, after(15, 9))
	g.drop(14)
	require.Nil(t, after(13, 9))
	require.Equal(t, []int64{15}, after(14, 9))
}

// S6: one change among 10,000 prefixes wakes the groups that it concerns, and no other.
func TestChangeWakesTheGroupsThatItConcerns(t *testing.T) {
	t.Parallel()
	target := newTarget("eu", 1)
	names := map[*group]string{}
	add := func(name string, f filter) { names[target.groups.join(f, 0)] = name }
	for i := range 10_000 {
		add("node-"+strconv.Itoa(i)+"/", newFilter([]string{"app"}, "node-"+strconv.Itoa(i)+"/"))
	}
	add("all", filter{})
	add("apps", newFilter([]string{"app"}, ""))
	add("both", newFilter([]string{"dns", "app"}, ""))
	add("dns", newFilter([]string{"dns"}, ""))
	add("dns node-77/", newFilter([]string{"dns"}, "node-77/"))
	wakes := map[*group]chan struct{}{}
	for g := range names {
		wakes[g] = g.wake
	}
	target.publish([]change{{resource: "app", key: "node-77/web", version: 1, spec: "1"}}, func(int64, int) {})
	var woken []string
	for g, wake := range wakes {
		select {
		case <-wake:
			require.Len(t, g.frames, 1)
			woken = append(woken, names[g])
		default:
			require.Empty(t, g.frames)
		}
	}
	slices.Sort(woken)
	require.Equal(t, []string{"all", "apps", "both", "node-77/"}, woken)
	for g := range names {
		target.groups.leave(g)
	}
	require.Equal(t, newGroups(), target.groups, "groups without watchers leave nothing")
}

// The least text behind a prefix, and none behind the greatest.
func TestAfterPrefix(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"": "", "a": "b", "a~": "a\x7f", "a\x7f": "a\u0080", "\uD7FF": "\uE000", "a\U0010FFFF": "b", "\U0010FFFF\U0010FFFF": "", "ü/": "ü0",
	} {
		require.Equal(t, want, afterPrefix(prefix), "%q", prefix)
		if want != "" {
			require.Less(t, prefix+strings.Repeat("\U0010FFFF", 3), want)
		}
	}
}

func TestBookmarks(t *testing.T) {
	t.Parallel()
	for _, b := range []bookmark{
		{version: 1}, {version: 1 << 60, scope: filter{}.scope(), stream: [16]byte{1}, epoch: [16]byte{2}},
		{paging: true}, {version: 7, paging: true, at: place{"app", "ü/\x01"}}, {paging: true, at: afterResources},
	} {
		got, err := parseBookmark(b.String())
		require.NoError(t, err)
		require.Equal(t, b, got)
		for i := range b.String() {
			text := []byte(b.String())
			text[i] ^= 1
			if got, err := parseBookmark(string(text)); err == nil {
				require.Equal(t, b, got, "no other place") // the last letter has bits that mean nothing
			}
			_, err = parseBookmark(b.String()[:i])
			require.Error(t, err)
		}
	}
}
