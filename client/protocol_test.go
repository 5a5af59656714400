package client_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// A server that speaks a newer protocol ends what a client does, and an older one refuses the client.
func TestAnotherProtocolEndsTheClient(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{})
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		ended := make(chan error, 1)
		go func() { ended <- i.Run(t.Context()) }()
		<-i.Synced()
		s.Speak(2)
		err := <-ended
		require.ErrorIs(t, err, client.ErrProtocol)
		require.EqualError(t, err, "another protocol: the server speaks protocol 2, and this client 1: upgrade the client")
		require.ErrorIs(t, s.Client().Report(t.Context(), "eu", client.Report{}), client.ErrProtocol)
		s.Down()
		_, err = s.Client().Get(t.Context(), "eu", "app", "1")
		require.ErrorIs(t, err, client.ErrProtocol, "an error shows it, too")
		s.Up()

		s.Speak(0)
		err = client.NewInformer(s.Client(), "eu", client.InformerOptions{}).Run(t.Context())
		require.EqualError(t, err, "the client speaks protocol 1, and this server 0: upgrade the server (status 400)")
	})
}

// A server from before protocols has no header.
func TestServerWithoutAProtocolSpeaksTheFirst(t *testing.T) {
	t.Parallel()
	_, c := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "1", r.Header.Get("Reconciler-Protocol"))
		lines(`{"type":"end_of_snapshot","bookmark":"b","revision":1}`)(w, r)
	})
	frames, err := collect(t.Context(), c, client.WatchOptions{Once: true})
	require.NoError(t, err)
	require.Equal(t, []string{"end_of_snapshot b"}, frames)
}

// Each report has what the client tells of itself at that time, within the bounds of the server.
func TestReportsHaveWhatTheClientTellsOfItself(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		healthy := false
		info := client.Info{
			Name: "host-7", Version: "1.2.0", Driver: "file", Held: 3, Trouble: "circuit open: connection refused", Healthy: &healthy,
		}
		c := s.Client(client.Identity(func() client.Info { return info }))
		require.NoError(t, c.Report(t.Context(), "eu", client.Report{}))
		require.Equal(t, info, s.Info())
		long := strings.Repeat("ä", 1000)
		info = client.Info{Name: long, Version: long, Driver: long, Trouble: long}
		require.NoError(t, c.Report(t.Context(), "eu", client.Report{}))
		require.Equal(t, client.Info{Name: long[:128], Version: long[:64], Driver: long[:64], Trouble: long[:1000]}, s.Info())
		require.NoError(t, s.Client().Report(t.Context(), "eu", client.Report{}))
		require.Equal(t, client.Info{}, s.Info())
	})
}
