package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// wantedSQL returns what each target is to have, from the tables of the example. It uses nothing of reconciler.
const wantedSQL = `
SELECT place, o.resource, o.key, o.spec
FROM unnest($1::text[]) AS place
JOIN (
    SELECT region, 'topology' AS resource, id::text AS key, spec FROM fleet.desired_topologies WHERE desired_status = 'running'
    UNION ALL
    SELECT region, 'network_policy', name, to_jsonb(p) - 'packets' FROM fleet.network_policies AS p
) AS o ON coalesce(o.region, place) = place`

// objects are JSON values by target and path, such as eu-west/topology/101.json.
type objects map[string]any

// wanted reads what the rows want.
func (d *demo) wanted(ctx context.Context) (objects, error) {
	rows, err := d.pool.Query(ctx, wantedSQL, append(fileTargets, webhookTarget))
	if err != nil {
		return nil, err
	}
	all := objects{}
	var target, resource, key string
	var spec []byte
	_, err = pgx.ForEachRow(rows, []any{&target, &resource, &key, &spec}, func() error {
		all.put(target+"/"+objectPath(resource, key), spec)
		return nil
	})
	return all, err
}

// compare returns how many objects the rows want, and a line for each that the targets do not have like that.
func (d *demo) compare(ctx context.Context) (count int, differences []string, err error) {
	want, err := d.wanted(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("read what the rows want: %w", err)
	}
	have := objects{}
	for _, target := range fileTargets {
		if err := have.read(target, d.dir(target)); err != nil {
			return 0, nil, fmt.Errorf("read the files of %s: %w", target, err)
		}
	}
	for path, spec := range d.hook.has() {
		have.put(webhookTarget+"/"+path, spec)
	}
	return len(want), differ(want, have), nil
}

// equal returns how many objects there are, and an error unless every target has what the rows want.
func (d *demo) equal(ctx context.Context) (count int, err error) {
	count, differences, err := d.compare(ctx)
	if err == nil {
		err = asError(differences)
	}
	return count, err
}

// asError returns an error with the first differences; nil if there are none.
func asError(differences []string) error {
	const shown = 10
	if len(differences) == 0 {
		return nil
	}
	return fmt.Errorf("%d objects differ from their rows: %s", len(differences), strings.Join(differences[:min(len(differences), shown)], "\n    "))
}

// put decodes an object. One that is no JSON stays text, which equals no spec.
func (o objects) put(path string, content []byte) {
	var value any
	if err := json.Unmarshal(content, &value); err != nil {
		value = string(content)
	}
	o[path] = value
}

// read adds the files of a target, but for those that a killed process left half-written: the file driver removes them later.
func (o objects) read(target, dir string) error {
	return filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || file == filepath.Join(dir, ".reconciler-owner") ||
			strings.HasPrefix(entry.Name(), ".reconciler-") && strings.HasSuffix(entry.Name(), ".tmp") {
			return err
		}
		content, err := os.ReadFile(file)   //nolint:gosec // no other user writes to the directory
		if errors.Is(err, fs.ErrNotExist) { // removed since the directory was read
			return nil
		}
		o.put(target+strings.TrimPrefix(filepath.ToSlash(file), filepath.ToSlash(dir)), content)
		return err
	})
}

// differ returns a line for each object that is not as wanted.
func differ(want, have objects) (lines []string) {
	paths := maps.Clone(want)
	maps.Copy(paths, have)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		wanted, isWanted := want[path]
		found, isThere := have[path]
		switch {
		case !isThere:
			lines = append(lines, path+": it is missing")
		case !isWanted:
			lines = append(lines, path+": no running row wants it")
		case !reflect.DeepEqual(wanted, found):
			lines = append(lines, fmt.Sprintf("%s: it is %s, and the row says %s", path, text(found), text(wanted)))
		}
	}
	return lines
}

func text(value any) string {
	encoded, _ := json.Marshal(value) //nolint:errchkjson // it was decoded from JSON
	return string(encoded)
}

// special matches what does not stand for itself in the name of a file.
var special = regexp.MustCompile(`^[.-]|[^A-Za-z0-9._-]`)

// objectPath is the path of an object below its target, as the documentation of the file driver has it.
func objectPath(resource, key string) string {
	return resource + "/" + special.ReplaceAllStringFunc(key, func(char string) string {
		var escaped strings.Builder
		for _, b := range []byte(char) {
			fmt.Fprintf(&escaped, "%%%02X", b)
		}
		return escaped.String()
	}) + ".json"
}
