package lease

import "slices"

// members are the processes that take part in the sharing out: this one, and those that were seen of late. One that
// let a lease expire is not waited for, else what a dead process leaves behind would wait for its share too. Neither
// is one whose heartbeat is overdue: it may have died along with the owner. What it holds stays with it.
//
// A target goes from process to process with the options that it was owned with last, as long as a member has them: for those that have
// others it is not there.
func (v view) members(mine []string) []member {
	present := v.present(mine)
	members := make([]member, len(present))
	keepers := v.keepers(present)
	for n, i := range present {
		members[n].id = i.id
		for at, name := range i.targets {
			if _, kept := keepers[name]; !kept || i.has(at, v.targets[name].options) {
				members[n].targets = append(members[n].targets, name)
			}
		}
	}
	return members
}

// present are this process, and those that take part in the sharing out.
func (v view) present(mine []string) []seenInstance {
	present := []seenInstance{{id: v.me, targets: mine, options: v.options}}
	late := map[string]bool{}
	for _, t := range v.targets {
		if t.expired() {
			late[t.owner] = true
		}
	}
	for _, i := range v.instances {
		if i.live && i.id != v.me && !late[i.id] && !i.quiet {
			present = append(present, i)
		}
	}
	return present
}

// keepers returns, by target, a process with the options that the target was owned with last.
func (v view) keepers(present []seenInstance) map[string]string {
	keepers := map[string]string{}
	for _, i := range present {
		for at, name := range i.targets {
			if i.has(at, v.targets[name].options) {
				keepers[name] = i.id
			}
		}
	}
	return keepers
}

// has reports whether the target at this place of the list has these options.
func (i seenInstance) has(at int, options string) bool {
	return options != "" && at < len(i.options) && i.options[at] == options
}

// outvoted returns the targets of this process that others keep with other options, with the name of one of these.
func (v view) outvoted(mine []string) map[string]string {
	out := map[string]string{}
	present := v.present(mine)
	for name, keeper := range v.keepers(present) {
		at := slices.Index(mine, name)
		if at < 0 || present[0].has(at, v.targets[name].options) {
			continue
		}
		n := slices.IndexFunc(present, func(i seenInstance) bool { return i.id == keeper })
		out[name] = present[n].name
	}
	return out
}
