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

func wanted(ctx context.Context, conn *pgx.Conn, targets []string) (objects, error) {
	rows, err := conn.Query(ctx, wantedSQL, targets)
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

// put decodes an object. One that is no JSON stays text, which equals no spec.
func (o objects) put(path string, content []byte) {
	var value any
	if err := json.Unmarshal(content, &value); err != nil {
		value = string(content)
	}
	o[path] = value
}

// read adds the files of a place, and counts those that a killed process left: the file driver removes them later.
func (o objects) read(p place) (leftovers int, err error) {
	err = filepath.WalkDir(p.dir, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || entry.IsDir() || file == filepath.Join(p.dir, ".reconciler-owner"):
			return err
		case strings.HasPrefix(entry.Name(), ".reconciler-") && strings.HasSuffix(entry.Name(), ".tmp"):
			leftovers++
			return nil
		}
		content, err := os.ReadFile(file)   //nolint:gosec // no other user writes to the directory
		if errors.Is(err, fs.ErrNotExist) { // removed since the directory was read
			return nil
		}
		o.put(p.name+strings.TrimPrefix(filepath.ToSlash(file), filepath.ToSlash(p.dir)), content)
		return err
	})
	return leftovers, err
}

// differences has a line for each object that is not as wanted.
func differences(want, have objects) (lines []string) {
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
