package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScreenAlignsFiguresAndIndentsOutput(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := &demo{out: &out}
	d.figure("label", "%d of %s", 1, "2")
	d.quote("reconciler wait", "one\n\ntwo\n")
	d.quote("psql", "")
	require.Equal(t, `    label                       1 of 2
    $ reconciler wait
      one

      two
    $ psql
`, out.String())
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestScreenThatIsGoneEndsTheDemo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	d := &demo{out: brokenPipe{}, fail: cancel}
	d.say("x")
	require.EqualError(t, context.Cause(ctx), "print to standard output: broken pipe")
}

func TestSpreadOfTimesInAnyOrder(t *testing.T) {
	t.Parallel()
	var times []time.Duration
	for n := range 200 {
		times = append(times, time.Duration(200-n)*time.Millisecond) // 200 ms to 1 ms
	}
	require.Equal(t, "p50 101.0 ms   p99 199.0 ms   max 200.0 ms", spread(times))
}

func TestStepThatTakesTooLong(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("`reconciler run` ended by itself"))
	err := inTime(ctx, func(ctx context.Context) error {
		_, err := until(ctx, "a file", time.Millisecond, func() (bool, error) { return false, nil })
		return err
	})
	require.EqualError(t, err, "`reconciler run` ended by itself: wait for a file: context canceled")
	require.EqualError(t, inTime(t.Context(), func(context.Context) error { return os.ErrClosed }), os.ErrClosed.Error())
}

func TestFileHasTheNewText(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "1.json")
	_, err := hasText(path, "web:2")
	require.ErrorIs(t, err, os.ErrNotExist)
	for content, want := range map[string]bool{`{"image": "web:1"}`: false, `{"image": "web:2"}`: true} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		has, err := hasText(path, "web:2")
		require.NoError(t, err)
		require.Equal(t, want, has, content)
	}
	require.NoError(t, os.WriteFile(path, []byte(`{"image": "web:2`), 0o600))
	_, err = hasText(path, "web:2")
	require.EqualError(t, err, path+` was seen half-written: "{\"image\": \"web:2"`)
}

func TestHookTakesRefusesAndGoesAway(t *testing.T) {
	t.Parallel()
	h, err := newHook(t.Context())
	require.NoError(t, err)
	defer func() { h.close() }()
	url := "http://" + h.addr + "/objects"
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
	answers(http.StatusOK, apply)
	require.Equal(t, map[string][]byte{"topology/%2E.%2F1.json": []byte(`{"a": 1}`)}, h.has())
	answers(http.StatusBadRequest, `{}`)
	answers(http.StatusBadRequest, `no JSON`)
	h.refuse(`"a"`)
	answers(http.StatusUnprocessableEntity, apply)
	h.refuse("")
	h.close()
	h.close() // once more does no harm
	_, err = send(apply)
	require.ErrorContains(t, err, "connection refused")
	require.NoError(t, h.open(t.Context()))
	answers(http.StatusOK, `{"action": "delete", "resource": "topology", "key": "../1"}`)
	require.Empty(t, h.has())
}
