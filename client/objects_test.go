package client_test

import (
	"maps"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// C3. What a caller changes is a copy.
func TestObjectsAreDecodedAnew(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{Image: "v1", Secrets: []string{"x"}})
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		apps := client.For[*deployment](i, "app")
		bySecret := apps.Index("secret", func(d *deployment) []string { return d.Secrets })
		start(t, i.Run)
		<-i.Synced()
		want := &deployment{Image: "v1", Secrets: []string{"x"}}
		for range 2 {
			got, _, err := apps.Get("1")
			require.NoError(t, err)
			require.Equal(t, want, got)
			got.Secrets[0], got.Image = "changed", "changed"
			for _, listed := range apps.All() {
				require.Equal(t, want, listed)
				listed.Secrets[0] = "changed"
			}
		}
		require.Equal(t, []string{"1"}, bySecret.Keys("x"))
	})
}

func TestObjectThatCannotBeDecodedIsAnError(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "bad", "text")
		s.Set("app", "good", deployment{})
		i := informer(t, s, client.InformerOptions{})
		apps := client.For[deployment](i, "app")
		<-i.Synced()
		got, found, err := apps.Get("bad")
		require.EqualError(t, err, `decode app "bad" of target eu: json: cannot unmarshal string into Go value of type client_test.deployment`)
		require.True(t, found)
		require.Zero(t, got)
		require.Equal(t, map[string]deployment{"good": {}}, maps.Collect(apps.All()))
	})
}

func TestIndexFollowsTheObjects(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{Secrets: []string{"x", "y", "x"}})
		s.Set("app", "2", deployment{Secrets: []string{"y"}})
		s.Set("app", "bad", "text")
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		x := client.For[deployment](i, "app").Index("secret", func(d deployment) []string {
			if d.Image == "panic" {
				panic("no")
			}
			return d.Secrets
		})
		start(t, i.Run)
		<-i.Synced()
		require.Equal(t, []string{"1", "2"}, x.Keys("y"))
		require.Equal(t, []string{"1"}, x.Keys("x", "z"))
		require.Equal(t, []string{"1", "2"}, x.Keys("x", "y"))
		require.Empty(t, x.Keys())

		s.Set("app", "1", deployment{Secrets: []string{"z"}})
		s.Set("app", "2", deployment{Image: "panic", Secrets: []string{"y"}})
		synctest.Wait()
		require.Empty(t, x.Keys("x", "y"))
		require.Equal(t, 1, x.Values())
		require.Equal(t, []string{"1"}, x.Keys("z"))
		lose(s, "app", "1")
		synctest.Wait()
		require.Empty(t, x.Keys("z"))
	})
}
