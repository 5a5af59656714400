package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A comparison that sees no damage proves nothing.
func TestComparisonSeesEveryKindOfDamage(t *testing.T) {
	t.Parallel()
	p := place{"eu", t.TempDir()}
	for path, content := range map[string]string{
		".reconciler-owner": "eu", "topology/.reconciler-A.tmp": "half", "topology/.reconciler-A.json": "{}",
		"topology/1.json": `{"n": 1, "list": ["a", "b"]}`, "topology/2.json": `{"n": "1"}`, "topology/3.json": `{"n": 1`,
		"topology/5.json": `{"n": 1, "extra": null}`, "topology/6.json": "{}{}", "network_policy/1.json": "{}",
	} {
		file := filepath.Join(p.dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	have, want := objects{}, objects{}
	leftovers, err := have.read(p)
	require.NoError(t, err)
	require.Equal(t, 1, leftovers)
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
	}, differences(want, have))
	_, err = have.read(place{"eu", filepath.Join(p.dir, "gone")})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestPathsOfOddKeys(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{"101": "101", "../a": "%2E.%2Fa", "-rf /": "%2Drf%20%2F", ".hidden": "%2Ehidden", "Zürich": "Z%C3%BCrich"} {
		require.Equal(t, "network_policy/"+want+".json", objectPath("network_policy", key))
	}
}
