package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// secret returns a Secret with these fields beside its name.
func secret(name string, fields map[string]any) map[string]any {
	manifest := map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name}}
	for field, value := range fields {
		manifest[field] = value
	}
	return manifest
}

// The cluster stores stringData as data, and shows nobody as the owner of its keys.
func TestF168_SecretsInStringDataFollowTheirRow(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	values := func() any { return b.get(t, secrets, b.namespace, "s").Object["data"] }
	plain := func(texts map[string]any) map[string]any { return secret("s", map[string]any{"stringData": texts}) }

	c.done(t, "web", plain(map[string]any{"user": "u", "password": "p"}))
	renamed := plain(map[string]any{"user2": "u", "password": "p"})
	c.done(t, "web", renamed)
	require.Equal(t, map[string]any{"user2": "dQ==", "password": "cA=="}, values())
	require.Empty(t, c.drifted(t))
	require.Empty(t, c.diff(t, "web", renamed))

	b.edit(t, secrets, "s", "kubectl-edit", `{"data": {"password": "eA=="}}`)
	require.Equal(t, []string{"web"}, c.drifted(t))
	require.Equal(t, []string{`Secret s in ` + b.namespace + `|.data.password|"(hidden)"|"(hidden)"|`}, c.diff(t, "web", renamed)[:1])
	c.done(t, "web", renamed)
	require.Equal(t, map[string]any{"user2": "dQ==", "password": "cA=="}, values())

	c.done(t, "web", secret("s", map[string]any{"data": map[string]any{"a": "MQ==", "b": "MQ=="}, "stringData": map[string]any{"a": "2"}}))
	require.Equal(t, map[string]any{"a": "Mg==", "b": "MQ=="}, values(), "stringData wins")
	c.done(t, "web", secret("s", nil))
	require.Nil(t, values())
}

func TestF168_IgnoredStringDataIsLeftToOthers(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"ignore": []any{"Secret/stringData/token"}})
	manifest := secret("s", map[string]any{"stringData": map[string]any{"token": "first", "user": "u"}})
	c.done(t, "web", manifest)
	b.edit(t, secrets, "s", "issuer", `{"data": {"token": "eA=="}}`)
	require.Empty(t, c.drifted(t))
	c.done(t, "web", manifest)
	require.Equal(t, map[string]any{"token": "eA==", "user": "dQ=="}, b.get(t, secrets, b.namespace, "s").Object["data"])
}
