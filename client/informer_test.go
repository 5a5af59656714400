package client_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// deployment and secret are the objects of these tests.
type deployment struct {
	Image   string   `json:"image"`
	Secrets []string `json:"secrets,omitempty"`
}

type secret struct {
	Value string `json:"value"`
}

// bubble runs a test with a server, within testing/synctest: time passes when everything waits.
func bubble(t *testing.T, test func(*testing.T, *streamtest.Server)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, streamtest.NewServer("eu")) })
}

// start runs something until the returned function is called, or the test ends, and requires that it returns nil.
func start(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

// informer returns one that runs until the test ends.
func informer(t *testing.T, s *streamtest.Server, opts client.InformerOptions) *client.Informer {
	t.Helper()
	i := client.NewInformer(s.Client(), "eu", opts)
	start(t, i.Run)
	return i
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestInformerHasTheObjectsOfASnapshotAndWhatFollows(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("deployment", "a", deployment{Image: "v1"})
		s.Set("secret", "x", secret{"1"})
		i := informer(t, s, client.InformerOptions{})
		<-i.Synced()
		deployments, secrets := client.For[deployment](i, "deployment"), client.For[secret](i, "secret")
		require.Equal(t, map[string]deployment{"a": {Image: "v1"}}, maps.Collect(deployments.All()))
		require.Equal(t, map[string]secret{"x": {"1"}}, maps.Collect(secrets.All()))

		s.Set("deployment", "a", deployment{Image: "v2"})
		s.Set("deployment", "b", deployment{Image: "v1"})
		s.Delete("secret", "x")
		synctest.Wait()
		require.Equal(t, map[string]deployment{"a": {Image: "v2"}, "b": {Image: "v1"}}, maps.Collect(deployments.All()))
		require.Empty(t, maps.Collect(secrets.All()))
		_, found, err := secrets.Get("x")
		require.NoError(t, err)
		require.False(t, found)
	})
}

// C1. One end completes all resources; before it the informer is not synced, however the snapshot is cut.
func TestInformerIsSyncedAtTheEndOfTheSnapshot(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("a", "1", deployment{})
		s.Set("b", "1", deployment{})
		s.Set("c", "1", deployment{})
		s.HoldAt("c")
		i := informer(t, s, client.InformerOptions{})
		synctest.Wait()
		require.False(t, closed(i.Synced()))
		require.Equal(t, 2, i.Status().Objects)
		require.Equal(t, "a snapshot is under way", i.Status().Waiting)
		s.Delete("b", "1")
		s.Expire() // so that only the second snapshot shows it
		s.Cut()
		time.Sleep(time.Minute)
		require.False(t, closed(i.Synced()))
		s.Release()
		<-i.Synced()
		status := i.Status()
		require.Equal(t, client.Status{Synced: true, Revision: 4, LastFrame: status.LastFrame, Objects: 2}, status)
		_, found, err := client.For[deployment](i, "b").Get("1")
		require.NoError(t, err)
		require.False(t, found, "what the cut snapshot has named does not count")
	})
}

func TestInformerShowsWhyItWaits(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Down()
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		require.Equal(t, client.Status{Waiting: "Run has not begun"}, i.Status())
		stop := start(t, i.Run)
		synctest.Wait()
		require.Equal(t, "the server is down (status 503)", i.Status().Waiting)
		s.Up()
		<-i.Synced()
		synctest.Wait()
		require.Empty(t, i.Status().Waiting)
		stop()
		require.Equal(t, "Run has ended", i.Status().Waiting)
	})
}

// C1. A reset keeps the objects until the next end, and removes what it does not name.
func TestResetIsComparedWithTheCache(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "gone", deployment{Image: "v1"})
		s.Set("app", "kept", deployment{Image: "v1"})
		i := informer(t, s, client.InformerOptions{})
		apps := client.For[deployment](i, "app")
		<-i.Synced()
		s.Set("last", "1", deployment{})
		synctest.Wait()
		s.HoldAt("last")
		lose(s, "app", "gone")
		synctest.Wait()
		require.Equal(t, map[string]deployment{"gone": {Image: "v1"}, "kept": {Image: "v1"}}, maps.Collect(apps.All()))
		require.Zero(t, i.Status().Revision)
		s.Release()
		synctest.Wait()
		require.Equal(t, map[string]deployment{"kept": {Image: "v1"}}, maps.Collect(apps.All()))
	})
}

// A restored server numbers versions anew: an old number must not hide a new state.
func TestVersionsAreForgottenAfterAReset(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		for range 9 {
			s.Set("app", "1", deployment{Image: "old"})
		}
		i := informer(t, s, client.InformerOptions{})
		<-i.Synced()
		s.Down()
		s.Reset("restored")
		require.EqualValues(t, 2, s.Set("app", "1", deployment{Image: "new"}))
		s.Up()
		time.Sleep(time.Minute)
		got, _, err := client.For[deployment](i, "app").Get("1")
		require.NoError(t, err)
		require.Equal(t, deployment{Image: "new"}, got)
	})
}

// What a row wants and the server does not publish is left as it is.
func TestKeepLeavesAnObject(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{Image: "v1"})
		i := informer(t, s, client.InformerOptions{})
		<-i.Synced()
		s.Lose("app", "1")
		s.Keep("app", "1", "blocked")
		s.Reset("expired")
		synctest.Wait()
		require.Equal(t, map[string]deployment{"1": {Image: "v1"}}, maps.Collect(client.For[deployment](i, "app").All()))
	})
}

// What the informer does not have is not absent before the server has brought it up to date, nor while the far side must keep it.
func TestF165_AnObjectIsAbsentWhenThatIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{Image: "v1"})
		s.Set("app", "2", deployment{Image: "v1"})
		s.Keep("app", "3", "blocked")
		s.Down()
		i := informer(t, s, client.InformerOptions{})
		time.Sleep(time.Minute)
		require.False(t, i.Absent("app", "4"))
		s.Up()
		<-i.Synced()
		require.NoError(t, i.WaitFor(t.Context(), s.Delete("app", "2")))
		for key, absent := range map[string]bool{"1": false, "2": true, "3": false, "4": true} {
			require.Equal(t, absent, i.Absent("app", key), key)
		}
	})
}

func TestWaitForReadsYourWrites(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		stop := start(t, i.Run)
		<-i.Synced()
		apps := client.For[deployment](i, "app")
		for range 3 {
			revision := s.Set("app", "1", deployment{Image: "v1"})
			require.NoError(t, i.WaitFor(t.Context(), revision))
			_, found, err := apps.Get("1")
			require.NoError(t, err)
			require.True(t, found)
			require.NoError(t, i.WaitFor(t.Context(), s.Delete("app", "1")))
			_, found, err = apps.Get("1")
			require.NoError(t, err)
			require.False(t, found)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, i.WaitFor(ctx, 1<<40), context.Canceled)
		waited := make(chan error)
		go func() { waited <- i.WaitFor(t.Context(), 1<<40) }()
		synctest.Wait()
		stop()
		require.EqualError(t, <-waited, "the informer has ended")
	})
}

func TestErrorsThatLastEndAnInformer(t *testing.T) {
	t.Parallel()
	i := client.NewInformer(streamtest.NewServer("eu").Client(), "us", client.InformerOptions{})
	err := i.Run(t.Context())
	require.ErrorIs(t, err, client.ErrNotFound)
	require.Equal(t, err, i.Status().Err)
	require.ErrorIs(t, i.WaitFor(t.Context(), 1), client.ErrNotFound)
}

// C6. A snapshot may be cut at any frame, and objects may change before it goes on or begins again.
func TestSnapshotMayBeCutAnywhere(t *testing.T) {
	t.Parallel()
	for _, cut := range []int{1, 50, 100, 101, 102, 150, 201, 202, 203, 207, 208, 209} { // of 205 objects, two bookmarks and the end
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *streamtest.Server) {
				fill(s, 205)
				s.CutAfter(cut)
				i := informer(t, s, client.InformerOptions{})
				synctest.Wait() // until the pause after the cut
				s.Delete("app", "0")
				s.Set("app", "150", deployment{Image: "v2"})
				s.Set("app", "new", deployment{})
				if cut%2 == 0 {
					s.Expire()
				}
				settle()
				got := maps.Collect(client.For[deployment](i, "app").All())
				require.Len(t, got, 205)
				require.NotContains(t, got, "0")
				require.Contains(t, got, "new")
				require.Equal(t, "v2", got["150"].Image)
			})
		})
	}
}

func TestInformerFollowsWhatWasAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "a-1", deployment{})
		s.Set("app", "b-1", deployment{})
		s.Set("dns", "a-1", deployment{})
		i := informer(t, s, client.InformerOptions{Resources: []string{"app"}, Prefix: "a-"})
		<-i.Synced()
		require.Equal(t, 1, i.Status().Objects)
	})
}
