package lease

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/store"
)

func TestShare(t *testing.T) {
	t.Parallel()
	all := []string{"p", "q", "r", "s"}
	for _, test := range []struct {
		name    string
		members []member
		owned   map[string]string
		free    []string
		want    map[string]string
	}{
		{name: "OneTakesAll", members: []member{{"a", all}}, free: all, want: map[string]string{"p": "a", "q": "a", "r": "a", "s": "a"}},
		{name: "FreeOnesGoToWhoHasLeast", members: []member{{"b", all}, {"a", all}}, owned: map[string]string{"p": "a"}, free: []string{"s", "r", "q"},
			want: map[string]string{"p": "a", "q": "b", "r": "a", "s": "b"}},
		{name: "NothingMovesForADifferenceOfOne", members: []member{{"a", all}, {"b", all}, {"c", all}}, owned: map[string]string{"p": "a", "q": "a", "r": "b", "s": "c"},
			want: map[string]string{"p": "a", "q": "a", "r": "b", "s": "c"}},
		{name: "ANewcomerGetsItsShare", members: []member{{"a", all}, {"b", all}}, owned: map[string]string{"p": "b", "q": "b", "r": "b", "s": "b"},
			want: map[string]string{"p": "a", "q": "a", "r": "b", "s": "b"}},
		{name: "OnlyWhoListsATargetGetsIt", members: []member{{"a", []string{"p"}}, {"b", all}}, free: all,
			want: map[string]string{"p": "a", "q": "b", "r": "b", "s": "b"}},
		{name: "WhatNobodyListsIsNobodys", members: []member{{"a", []string{"p"}}}, free: all, want: map[string]string{"p": "a"}},
		{name: "WhatAnOutsiderOwnsIsLeftAlone", members: []member{{"a", all}}, owned: map[string]string{"p": "gone"}, free: []string{"q"},
			want: map[string]string{"q": "a"}},
		{name: "AnOwnerThatNoLongerListsItsTargetIsLeftAlone", members: []member{{"a", []string{"q"}}}, owned: map[string]string{"p": "a"}, free: []string{"q"},
			want: map[string]string{"q": "a"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, share(test.members, test.owned, test.free))
		})
	}
}

// A process that died along with an owner gets nothing, though it is the one that has least: neither what the owner
// left nor what another could spare. What it holds itself stays with it as long as the lease.
func TestPlanDoesNotWaitForTheSilent(t *testing.T) {
	t.Parallel()
	timing := Timing{}.withDefaults()
	plan := func(own, server time.Duration, owner string, left time.Duration) map[string]string {
		all := []string{"x", "y", "z"}
		const now = time.Hour
		seen := &watch{at: now, seen: map[string]sighting{
			"dead": {at: now - (timing.MinTTL - left)}, "b": {at: now - own},
		}}
		return see([]store.LeaseHeartbeatRow{
			{Kind: "server", At: time.Unix(0, 0).Add(now)},
			{Kind: "instance", Instance: "b", Targets: all, At: time.Unix(0, 0).Add(now - server)},
			{Kind: "target", Name: "x", Instance: "me", Ttl: timing.MinTTL},
			{Kind: "target", Name: "y", Instance: "me", Ttl: timing.MinTTL},
			{Kind: "target", Name: "z", Instance: owner, Ttl: timing.MinTTL},
		}, "me", seen, timing).plan(all)
	}
	const late, overdue = 5 * time.Second, 6 * time.Second
	require.Equal(t, map[string]string{"x": "me", "y": "me", "z": "b"}, plan(late, late, "dead", 0))
	require.Equal(t, map[string]string{"x": "b", "y": "me"}, plan(late, late, "dead", time.Second))
	for _, silent := range [][2]time.Duration{{overdue, late}, {late, overdue}} { // by either clock
		own, server := silent[0], silent[1]
		require.Equal(t, map[string]string{"x": "me", "y": "me", "z": "me"}, plan(own, server, "dead", 0))
		require.Equal(t, map[string]string{"x": "me", "y": "me"}, plan(own, server, "dead", time.Second))
		require.Equal(t, map[string]string{"x": "me", "y": "me"}, plan(own, server, "b", time.Second))
	}
}

// What a dead process leaves goes to one that has heard its last heartbeat, though another one has less: that came later, and
// must wait for as long as the lease lasts before it can know.
func TestNewcomerIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	timing := Timing{}.withDefaults()
	plan := func(cameAgo time.Duration) map[string]string {
		all := []string{"x", "y", "z"}
		const now = time.Hour
		seen := &watch{at: now, seen: map[string]sighting{
			"dead": {at: now - timing.MinTTL}, "new": {at: now, first: now - cameAgo},
		}}
		return see([]store.LeaseHeartbeatRow{
			{Kind: "instance", Instance: "new", Targets: all},
			{Kind: "target", Name: "x", Instance: "me", Ttl: timing.MinTTL},
			{Kind: "target", Name: "y", Ttl: timing.MinTTL},
			{Kind: "target", Name: "z", Instance: "dead", Ttl: timing.MinTTL},
		}, "me", seen, timing).plan(all)
	}
	require.Equal(t, map[string]string{"x": "me", "y": "new", "z": "me"}, plan(timing.MinTTL-time.Second))
	require.Equal(t, map[string]string{"x": "me", "y": "me", "z": "new"}, plan(timing.MinTTL))
}

// world are members and targets at some moment.
type world struct {
	members []member
	owned   map[string]string
	free    []string
}

func drawWorld(t *rapid.T, sameLists bool) world {
	targets := make([]string, rapid.IntRange(0, 20).Draw(t, "targets"))
	for i := range targets {
		targets[i] = fmt.Sprintf("t%02d", i)
	}
	w := world{owned: map[string]string{}}
	for i := range rapid.IntRange(1, 6).Draw(t, "members") {
		m := member{id: fmt.Sprintf("m%d", i), targets: targets}
		if !sameLists {
			m.targets = slices.DeleteFunc(slices.Clone(targets), func(string) bool { return rapid.Bool().Draw(t, "unlisted") })
		}
		w.members = append(w.members, m)
	}
	for _, target := range targets {
		owner := rapid.SampledFrom(append([]member{{id: "dead"}, {id: ""}}, w.members...)).Draw(t, "owner").id
		if owner == "" {
			w.free = append(w.free, target)
		} else {
			w.owned[target] = owner
		}
	}
	return w
}

func loads(members []member, plan map[string]string) []int {
	count := map[string]int{}
	for _, m := range plan {
		count[m]++
	}
	all := make([]int, 0, len(members))
	for _, m := range members {
		all = append(all, count[m.id])
	}
	return all
}

func TestShareIsFairWhenAllListTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, true)
		all := loads(w.members, share(w.members, w.owned, w.free))
		require.LessOrEqual(t, slices.Max(all)-slices.Min(all), 1)
	})
}

func TestShareIsSettledAndTheSameForEverybody(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, false)
		plan := share(w.members, w.owned, w.free)
		require.Equal(t, plan, share(rapid.Permutation(w.members).Draw(t, "order"), maps.Clone(w.owned), rapid.Permutation(w.free).Draw(t, "free")))
		require.Equal(t, plan, share(w.members, plan, nil), "a plan carried out moves nothing")
		for _, target := range w.free {
			listed := slices.ContainsFunc(w.members, func(m member) bool { return slices.Contains(m.targets, target) })
			require.Equal(t, listed, plan[target] != "")
		}
	})
}

// Each member acts on what it saw last, which may be old: it takes what is free, and gives back one target at a time.
func TestSharesConvergeOnOldViewsAndThenRest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, false)
		for target, owner := range w.owned {
			if owner == "dead" || !slices.ContainsFunc(w.members, func(m member) bool { return m.id == owner && slices.Contains(m.targets, target) }) {
				delete(w.owned, target)
				w.free = append(w.free, target)
			}
		}
		seen := map[string]world{}
		look := func(id string) {
			seen[id] = world{members: w.members, owned: maps.Clone(w.owned), free: slices.Clone(w.free)}
		}
		for _, m := range w.members {
			look(m.id)
		}
		for range rapid.IntRange(0, 30).Draw(t, "stale steps") {
			id := rapid.SampledFrom(w.members).Draw(t, "acts").id
			act(&w, seen[id], id)
			look(rapid.SampledFrom(w.members).Draw(t, "looks").id)
		}
		for range 21 { // at most every target moves once
			for _, m := range w.members {
				look(m.id)
				act(&w, seen[m.id], m.id)
			}
		}
		before := maps.Clone(w.owned)
		for _, m := range w.members {
			look(m.id)
			act(&w, seen[m.id], m.id)
		}
		require.Equal(t, before, w.owned)
		require.Equal(t, before, share(w.members, w.owned, w.free))
	})
}

// act is what one member does after it has seen a world that may have changed since.
func act(w *world, seen world, id string) {
	plan := share(seen.members, seen.owned, seen.free)
	for _, target := range seen.free {
		if i := slices.Index(w.free, target); i >= 0 && plan[target] == id {
			w.free = slices.Delete(w.free, i, i+1)
			w.owned[target] = id
		}
	}
	for _, target := range slices.Sorted(maps.Keys(seen.owned)) {
		if seen.owned[target] == id && w.owned[target] == id && plan[target] != id {
			delete(w.owned, target)
			w.free = append(w.free, target)
			return
		}
	}
}
