package client_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

func TestStoreOfOtherObjectsIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		s.Set("app", "1", deployment{})
		restart(t, s, path, client.InformerOptions{}).stopWhenSettled()
		store := openStore(t, path)
		run := func(target string, opts client.InformerOptions) error {
			opts.Store = store
			return client.NewInformer(s.Client(), target, opts).Run(t.Context())
		}
		require.EqualError(t, run("us", client.InformerOptions{}),
			"store "+path+": it has the objects of target eu, not of target us: use another file")
		require.EqualError(t, run("us", client.InformerOptions{}), "store "+path+": another informer uses it")
		require.NoError(t, store.Close())
		store = openStore(t, path)
		require.EqualError(t, run("eu", client.InformerOptions{Resources: []string{"app"}, Prefix: "x"}),
			"store "+path+`: it has the objects of target eu, not of target eu, resources app, prefix "x": use another file`)
		require.NoError(t, store.Close())
		store = openStore(t, path)
		s.Become("another")
		err := run("eu", client.InformerOptions{})
		require.ErrorIs(t, err, client.ErrInstallation)
		require.EqualError(t, err, "store "+path+": another installation: streamtest was installation streamtest and is another now")
	})
}

func TestStoreThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	s := streamtest.NewServer("eu")
	path := filepath.Join(t.TempDir(), "objects")
	s.Set("app", "1", deployment{Image: "v1"})
	store := openStore(t, path)
	i := client.NewInformer(s.Client(), "eu", client.InformerOptions{Store: store})
	stop := start(t, i.Run)
	<-i.Synced()
	_, err := client.OpenStore(path)
	require.EqualError(t, err, "store "+path+": another process has it open")
	stop()
	require.NoError(t, store.Close())

	db, err := bbolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		objects := tx.Bucket([]byte("objects"))
		value := slices.Clone(objects.Get([]byte("app\x001")))
		value[len(value)-3] ^= 1
		return objects.Put([]byte("app\x001"), value)
	}))
	require.NoError(t, db.Close())
	err = client.NewInformer(s.Client(), "eu", client.InformerOptions{Store: openStore(t, path)}).Run(t.Context())
	require.EqualError(t, err, "store "+path+`: the entry of app "1" is corrupt: remove the file, to begin with a snapshot`)

	broken := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.WriteFile(broken, slices.Repeat([]byte("not a database"), 1000), 0o600))
	_, err = client.OpenStore(broken)
	require.ErrorContains(t, err, "store "+broken+": ")
}
