package watch

import (
	"context"
	"net/http/httptest"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// written is a response in memory.
type written struct{ *httptest.ResponseRecorder }

func (written) SetWriteDeadline(time.Time) error { return nil }

var anyBookmark = regexp.MustCompile(`"bookmark":"[^"]*",`)

// take returns what was written since the last call.
func (w written) take() string {
	defer w.Body.Reset()
	return anyBookmark.ReplaceAllString(w.Body.String(), "")
}

// An idle watcher sends a checkpoint as soon as the controls have changed, without waiting for its heartbeat, and no other.
func TestChangedControlsWakeIdleWatchers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		eu, out := newTarget("eu", 1), written{httptest.NewRecorder()}
		eu.see(bounds{head: 7}, nil, nil)
		ctx, cancel := context.WithCancel(t.Context())
		w := &watcher{
			grant: &grant{}, target: eu, group: eu.groups.join(filter{}, 7), follow: true, at: bookmark{version: 7},
			out:    output{writing: newWriting(out), w: out},
			frames: prometheus.NewCounter(prometheus.CounterOpts{}), bytes: prometheus.NewCounter(prometheus.CounterOpts{}),
			beat: time.NewTimer(time.Hour), age: time.NewTimer(time.Hour),
		}
		ended := make(chan error, 1)
		go func() { ended <- w.live(ctx) }()
		defer func() {
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
		}()
		for _, step := range []struct {
			controls controls
			want     string
		}{
			{controls{}, ""},
			{controls{Paused: true, pauses: 1}, `{"type":"checkpoint","version":7,"revision":0,"controls":{"paused":true}}` + "\n"},
			{controls{Paused: true, pauses: 1}, ""},
			{controls{Paused: true, Retry: 1, pauses: 1}, `{"type":"checkpoint","version":7,"revision":0,"controls":{"paused":true,"retry":1}}` + "\n"},
			{controls{Retry: 1, pauses: 2}, `{"type":"checkpoint","version":7,"revision":0,"controls":{"retry":1}}` + "\n"},
		} {
			eu.see(bounds{head: 7, controls: step.controls}, nil, nil)
			synctest.Wait()
			require.Equal(t, step.want, out.take())
		}
	})
}
