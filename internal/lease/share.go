package lease

import (
	"cmp"
	"maps"
	"slices"
)

// member is a process that takes part in the sharing out.
type member struct {
	id      string
	targets []string // what its config lists
}

// share computes which member should have which target. owned says who has what now; free is what nobody has.
//
// Targets stay where they are, free ones go to the member that has least, and then one after the other moves as long
// as that makes two members' loads more even (a difference of two or more). The result depends on nothing but the
// arguments, whatever their order: every process that sees the same rows computes the same. When all list the same,
// nobody ends up with more than targets / members, rounded up. A plan carried out is a plan that moves nothing.
func share(members []member, owned map[string]string, free []string) map[string]string {
	members = slices.SortedFunc(slices.Values(members), func(a, b member) int { return cmp.Compare(a.id, b.id) })
	plan := map[string]string{}
	load := map[string]int{}
	lists := map[string]map[string]bool{}
	for _, m := range members {
		lists[m.id] = map[string]bool{}
		for _, t := range m.targets {
			lists[m.id][t] = true
		}
	}
	for target, owner := range owned {
		if lists[owner][target] {
			plan[target] = owner
			load[owner]++
		}
	}
	for _, target := range slices.Sorted(slices.Values(free)) {
		if m, ok := leastLoaded(members, load, func(id string) bool { return lists[id][target] }); ok {
			plan[target] = m
			load[m]++
		}
	}
	for even(members, plan, load, lists) {
	}
	return plan
}

// even makes the one move that helps most, and says whether there was any. Each move makes the sum of the squares of
// the loads smaller, so they come to an end.
func even(members []member, plan map[string]string, load map[string]int, lists map[string]map[string]bool) bool {
	givers := slices.SortedStableFunc(slices.Values(members), func(a, b member) int { return cmp.Compare(load[b.id], load[a.id]) })
	targets := slices.Sorted(maps.Keys(plan))
	for _, giver := range givers {
		best, moved := "", ""
		for _, target := range targets {
			if plan[target] != giver.id {
				continue
			}
			taker, ok := leastLoaded(members, load, func(id string) bool { return lists[id][target] })
			if ok && load[giver.id]-load[taker] >= 2 && (best == "" || load[taker] < load[best]) {
				best, moved = taker, target
			}
		}
		if best != "" {
			plan[moved] = best
			load[giver.id]--
			load[best]++
			return true
		}
	}
	return false
}

// leastLoaded returns the first of the members that qualify with the smallest load.
func leastLoaded(members []member, load map[string]int, qualifies func(id string) bool) (string, bool) {
	best, found := "", false
	for _, m := range members {
		if qualifies(m.id) && (!found || load[m.id] < load[best]) {
			best, found = m.id, true
		}
	}
	return best, found
}
