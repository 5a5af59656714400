package faults_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// addAgents has agents call for half of the targets that may have one, in half of the worlds. These have a webhook more than others, so that
// there are agents with several targets. Worlds that once failed are left as they were.
func (p *plan) addAgents(r *rand.Rand) {
	if r.IntN(2) > 0 || slices.Contains(slices.Concat(briefSeeds, longSeeds), p.Seed) {
		return
	}
	last := len(p.Targets) - 1
	p.Targets = slices.Insert(p.Targets, last, newTarget(r, last))
	p.Targets[last+1].Name = fmt.Sprintf("t%d", last+1)
	able := last + 1
	if !p.streams() {
		able++
	}
	together := r.IntN(2) == 0
	half := (able + r.IntN(2)) / 2
	for i, number := range r.Perm(able)[:half] {
		t := &p.Targets[number]
		if t.Remote = true; !together {
			t.Host = i
		}
	}
}

// streams reports whether the last target is a stream. In a world with a small disk it is not.
func (p *plan) streams() bool {
	return !p.Disk && p.stream(streamStreams).IntN(2) == 0
}

// hosts returns the targets of each agent.
func (p *plan) hosts() (hosts [][]targetPlan) {
	for _, t := range p.Targets {
		if !t.Remote {
			continue
		}
		for len(hosts) <= t.Host {
			hosts = append(hosts, nil)
		}
		hosts[t.Host] = append(hosts[t.Host], t)
	}
	return hosts
}

func TestHalfOfTheTargetsOfHalfOfTheWorldsHaveAgents(t *testing.T) {
	t.Parallel()
	const worlds = 2000
	with, able, remote, files, several := 0, 0, 0, 0, 0
	for seed := range uint64(worlds) {
		hosts := newPlanOf(seed, nil).hosts()
		if len(hosts) == 0 {
			continue
		}
		with++
		for _, target := range newPlanOf(seed, nil).Targets {
			if target.Driver != "stream" {
				able++
			}
			if target.Remote {
				remote++
				require.NotEqual(t, "stream", target.Driver)
				if target.Driver == "file" {
					files++
				}
			}
		}
		if slices.ContainsFunc(hosts, func(targets []targetPlan) bool { return len(targets) > 1 }) {
			several++
		}
	}
	require.InDelta(t, 0.5, float64(with)/worlds, 0.05)
	require.InDelta(t, 0.5, float64(remote)/float64(able), 0.05)
	require.Greater(t, float64(files)/float64(with), 0.2)
	require.Greater(t, float64(several)/float64(with), 0.2)
	require.NotEmpty(t, newPlanOf(agentSeed, nil).hosts(), "the gate lives with agents")
	for _, seed := range slices.Concat(briefSeeds, longSeeds) {
		require.Empty(t, newPlanOf(seed, nil).hosts(), "as it once failed")
	}
}
