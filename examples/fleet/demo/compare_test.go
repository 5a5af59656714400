package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A comparison that sees no damage proves nothing.
func TestComparisonSeesEveryKindOfDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, content := range map[string]string{
		".reconciler-owner": "eu", "topology/.reconciler-A.tmp": "half", "topology/.reconciler-A.json": "{}",
		"topology/1.json": `{"n": 1, "list": ["a", "b"]}`, "topology/2.json": `{"n": "1"}`, "topology/3.json": `{"n": 1`,
		"topology/5.json": `{"n": 1, "extra": null}`, "topology/6.json": "{}{}", "network_policy/1.json": "{}",
	} {
		file := filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	have, want := objects{}, objects{}
	require.NoError(t, have.read("eu", dir))
	want.put("eu/topology/1.json", []byte(`{"list":["a","b"],"n":1}`))
	for _, key := range []string{"2", "3", "4", "5"} {
		want.put("eu/"+objectPath("topology", key), []byte(`{"n":1}`))
	}
	want.put("eu/topology/6.json", []byte("{}"))
	require.Equal(t, []string{
		"eu/network_policy/1.json: no running row wants it",
		"eu/topology/.reconciler-A.json: no running row wants it",
		`eu/topology/2.json: it is {"n":"1"}, and the row says {"n":1}`,
		`eu/topology/3.json: it is "{\"n\": 1", and the row says {"n":1}`,
		"eu/topology/4.json: it is missing",
		`eu/topology/5.json: it is {"extra":null,"n":1}, and the row says {"n":1}`,
		`eu/topology/6.json: it is "{}{}", and the row says {}`,
	}, differ(want, have))
	require.ErrorIs(t, have.read("eu", filepath.Join(dir, "gone")), os.ErrNotExist)
}

func TestPathsOfOddKeys(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{"101": "101", "../a": "%2E.%2Fa", "-rf /": "%2Drf%20%2F", ".hidden": "%2Ehidden", "Zürich": "Z%C3%BCrich"} {
		require.Equal(t, "network_policy/"+want+".json", objectPath("network_policy", key))
	}
}

func TestErrorListsTheFirstDifferences(t *testing.T) {
	t.Parallel()
	require.NoError(t, asError(nil))
	require.EqualError(t, asError([]string{"a", "b"}), "2 objects differ from their rows: a\n    b")
	require.EqualError(t, asError(strings.Split("abcdefghijkl", "")), "12 objects differ from their rows: a\n    b\n    c\n    d\n    e\n    f\n    g\n    h\n    i\n    j")
}
