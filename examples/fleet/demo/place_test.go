package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlaceCountsObjectsOnly(t *testing.T) {
	t.Parallel()
	p := place{"eu", t.TempDir()}
	n, err := p.files()
	require.NoError(t, err)
	require.Zero(t, n)
	for _, path := range []string{p.topology(1), p.topology(2), filepath.Join(p.dir, "network_policy", "a.json"), filepath.Join(p.dir, "topology", ".x.tmp")} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	_, err = p.awaitFiles(t.Context(), 3)
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	_, err = p.awaitFiles(ctx, 4)
	require.EqualError(t, err, "enough")
}

func TestWatchedFileArrivesWithTheNewContent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "1.json")
	_, err := watch(path, "replicas", 2.0)
	require.ErrorIs(t, err, os.ErrNotExist)
	write := func(content string) { require.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
	write(`{"replicas": 1}`)
	w, err := watch(path, "replicas", 2.0)
	require.NoError(t, err)
	for _, step := range []struct {
		content string
		arrived bool
	}{{`{"replicas": 1}`, false}, {`{"replicas": 3}`, false}, {`{"replicas": 2}`, true}} {
		write(step.content)
		arrived, err := w.arrived()
		require.NoError(t, err)
		require.Equal(t, step.arrived, arrived, step.content)
	}
	_, err = await(t.Context(), []watched{w})
	require.NoError(t, err)
	write(`{"replicas":`)
	_, err = w.arrived()
	require.EqualError(t, err, path+" was seen half written: unexpected end of JSON input")
}

func TestHookTakesRefusesAndGoesAway(t *testing.T) {
	t.Parallel()
	h, err := openHook(t.Context())
	require.NoError(t, err)
	defer h.close()
	url := h.url()
	send := func(body string) (int, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/topology/1", bytes.NewBufferString(body))
		require.NoError(t, err)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	answers := func(want int, body string) {
		t.Helper()
		code, err := send(body)
		require.NoError(t, err)
		require.Equal(t, want, code)
	}
	const apply = `{"action": "apply", "resource": "topology", "key": "../1", "spec": {"a": 1}}`
	answers(http.StatusNoContent, apply)
	objects, asked := h.has()
	require.Equal(t, map[string][]byte{"topology/%2E.%2F1.json": []byte(`{"a": 1}`)}, objects)
	require.Equal(t, 1, asked)
	answers(http.StatusBadRequest, `{}`)
	answers(http.StatusBadRequest, `no JSON`)
	h.breakDown()
	answers(http.StatusServiceUnavailable, apply)
	h.close()
	h.close() // once more does no harm
	_, err = send(apply)
	require.ErrorContains(t, err, "connection refused")
	require.NoError(t, h.open(t.Context()))
	require.Equal(t, url, h.url())
	answers(http.StatusNoContent, `{"action": "delete", "resource": "topology", "key": "../1"}`)
	objects, asked = h.has()
	require.Empty(t, objects)
	require.Equal(t, 5, asked)
}
