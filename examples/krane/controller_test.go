package main

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDirectoryFollowsDeploymentsAndSecrets(t *testing.T) {
	t.Parallel()
	s := streamtest.NewServer("eu")
	s.Set("secret", "db", secret{Name: "db", Value: "1"})
	s.Set("deployment", "web/1", deployment{Image: "v1", Secrets: []string{"db"}})
	s.Set("deployment", "idle", deployment{Image: "v1"})
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "orphan"), nil, 0o600))

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{server.URL, "eu", dir, filepath.Join(t.TempDir(), "store")}) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	observed := func(key string, state client.State) client.Observation {
		t.Helper()
		o, err := s.WaitObserved(t.Context(), "deployment", key, state)
		require.NoError(t, err)
		return o
	}
	content := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(text)
	}
	observed("web/1", client.StateApplied)
	require.Equal(t, `{"env":{"db":"1"},"image":"v1"}`, content("web%2F1"))

	s.Delete("secret", "db")
	require.Equal(t, `there is no secret "db"`, observed("web/1", client.StateFailed).Message)
	s.Set("secret", "db", secret{Name: "db", Value: "2"})
	observed("web/1", client.StateApplied)
	require.Equal(t, `{"env":{"db":"2"},"image":"v1"}`, content("web%2F1"))

	s.Delete("deployment", "idle")
	observed("idle", client.StateAbsent)
	s.Delete("deployment", "orphan") // which the server has never had; its file is gone all the same
	observed("orphan", client.StateAbsent)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	require.EqualError(t, run(t.Context(), nil), "usage: krane SERVER TARGET DIRECTORY STORE")
	require.ErrorContains(t, run(t.Context(), []string{"nowhere", "eu", "", ""}), "server must be a URL")
}
