package kubernetes

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conflict is a field that another manager owns.
type conflict struct{ manager, field string }

// conflictManager finds the manager in the text of a cause: conflict with "kubectl-edit" using v1.
var conflictManager = regexp.MustCompile(`^conflict with "((?:[^"\\]|\\.)*)"`)

// conflicts returns the fields for which an apply was refused; none if it was refused for another reason.
func conflicts(err error) []conflict {
	var found []conflict
	for _, cause := range causesOf(err) {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		one := conflict{manager: cause.Message, field: cause.Field}
		if m := conflictManager.FindStringSubmatch(cause.Message); m != nil {
			one.manager = m[1]
		}
		found = append(found, one)
	}
	return found
}

// overrules reports whether an apply that was refused for these conflicts is to be forced: the options name each manager in its way.
func (c *cluster) overrules(found []conflict) bool {
	return len(found) > 0 && !slices.ContainsFunc(found, func(one conflict) bool { return !c.force && !slices.Contains(c.overrule, one.manager) })
}

// ownerFields are the marks that ownerOf goes by, as conflicts name them.
var ownerFields = []string{
	".metadata.labels." + labelPartOf, ".metadata.labels." + labelObject, ".metadata.annotations." + markRow,
}

// overOwner reports whether another manager has set the marks of the owner.
func overOwner(found []conflict) bool {
	return slices.ContainsFunc(found, func(one conflict) bool { return slices.Contains(ownerFields, one.field) })
}

// describe names the managers and their fields.
func describe(found []conflict) string {
	fields := map[string][]string{}
	var managers []string
	for _, one := range found {
		if fields[one.manager] == nil {
			managers = append(managers, one.manager)
		}
		fields[one.manager] = append(fields[one.manager], one.field)
	}
	slices.Sort(managers)
	parts := make([]string, len(managers))
	for i, manager := range managers {
		parts[i] = fmt.Sprintf("%s owns %s", manager, strings.Join(fields[manager], ", "))
	}
	return strings.Join(parts, "; ") + ": take the fields out of the manifest, list them in options.ignore, " +
		"or name the manager in options.force_managers"
}
