package server_test

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
	"github.com/pgreconciler/reconciler/internal/stream"
)

// streaming is a target with the driver stream.
func streaming(t testing.TB, change ...func(*config.Target)) servertest.Target {
	t.Helper()
	d, err := stream.Kind().Open("eu", driver.Options{}, driver.Env{})
	require.NoError(t, err)
	return servertest.Named("eu", d, append(change, func(c *config.Target) { c.Driver = "stream" })...)
}

// published describes what the streams have published.
func published(w *servertest.World) string {
	return w.Text(`SELECT coalesce(string_agg(t.name || '/' || p.resource || '/' || p.key || '=' || coalesce(p.spec::text, '-'), ' ' ORDER BY t.name, p.resource, p.key), '')
		FROM reconciler.published p JOIN reconciler.targets t ON t.id = p.target_id`)
}

// A stream has what its rows ask for, with tombstones, and follows changes.
func TestStreamPublishesItsRows(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 3)
	p := w.Start(streaming(t))
	w.Eventually("the stream is complete", func() bool { return w.Text(`SELECT count(*)::text FROM reconciler.streams WHERE complete`) == "1" })
	require.Equal(t, `eu/app/1="v1" eu/app/2="v1" eu/app/3="v1"`, published(w), "when it is complete, everything is published")
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1; DELETE FROM apps WHERE id = 2; INSERT INTO apps VALUES (4, 'eu', 'v1')`)
	w.Wait()
	require.Equal(t, `eu/app/1="v2" eu/app/2=- eu/app/3="v1" eu/app/4="v1"`, published(w))
	p.Stop(t)

	w.DB.Exec(t, `UPDATE reconciler.published SET spec = '"edited"', hash = '\x00112233445566778899aabbccddeeff' WHERE key = '3'`)
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 4`)
	w.Start(streaming(t))
	w.Wait()
	w.Eventually("a process that begins repairs what it finds", func() bool {
		return published(w) == `eu/app/1="v2" eu/app/2=- eu/app/3="v1" eu/app/4=-`
	})
}

// I6, S8: the guard, which holds deletes, holds them back from those who follow.
func TestStreamPublishesNoDeleteThatTheGuardHolds(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 30)
	w.Start(streaming(t, func(c *config.Target) { c.Guard.MaxDeletes = new(5) }))
	w.Wait()
	before := published(w)
	w.DB.Exec(t, `DELETE FROM apps`)
	w.Eventually("the guard holds the deletes", func() bool { return w.Text(`SELECT coalesce(guard_deletes, 0)::text FROM reconciler.targets`) == "30" })
	require.Equal(t, before, published(w))
	w.DB.Exec(t, `SELECT reconciler.approve('eu')`)
	w.Wait()
	require.Equal(t, "30", w.Text(`SELECT count(*)::text FROM reconciler.published WHERE spec IS NULL`))
}

// A restore, or what start_over() makes of one, ends the epoch; the next full sync completes the new one.
func TestStreamIsCompleteAgainAfterStartOver(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 3)
	w.Start(streaming(t, func(c *config.Target) { c.Timeout = time.Second })) // for which it waits: a call may still be under way
	complete := func() bool { return w.Text(`SELECT count(*)::text FROM reconciler.streams WHERE complete`) == "1" }
	w.Eventually("the stream is complete", complete)
	tx := w.Begin()
	w.In(tx, `SELECT reconciler.start_over('restored')`)
	var still bool
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT complete FROM reconciler.streams`).Scan(&still))
	require.False(t, still)
	require.NoError(t, tx.Commit(t.Context()))
	w.Eventually("the stream is complete again", complete)
	require.Equal(t, `eu/app/1="v1" eu/app/2="v1" eu/app/3="v1"`, published(w))
}

// What a target has published by the driver stream goes when another driver takes its place.
func TestStreamGoesWhenItsTargetHasAnotherDriver(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 2)
	p := w.Start(streaming(t))
	w.Wait()
	p.Stop(t)
	require.NotEmpty(t, published(w))
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, map[string]string{"app/1": `"v1"`, "app/2": `"v1"`})
	require.Equal(t, "0", w.Text(`SELECT count(*)::text FROM reconciler.streams`))
	require.Empty(t, published(w))
}

// frames reads what is served of a stream, line by line.
type frames struct {
	t     testing.TB
	lines *bufio.Scanner
}

func watch(w *servertest.World, client *http.Client, url, token string) *frames {
	w.T.Helper()
	request, err := http.NewRequestWithContext(w.T.Context(), http.MethodGet, url, nil)
	require.NoError(w.T, err)
	request.Header.Set("Authorization", "Bearer "+token)
	var response *http.Response
	w.Eventually("the stream is there", func() bool {
		response, err = client.Do(request)
		require.NoError(w.T, err)
		if response.StatusCode == http.StatusServiceUnavailable { // it has just started
			require.NoError(w.T, response.Body.Close())
			return false
		}
		return true
	})
	w.T.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(w.T, http.StatusOK, response.StatusCode)
	return &frames{w.T, bufio.NewScanner(response.Body)}
}

// until returns the frames up to one of a type, without checkpoints and what may be waited for.
func (f *frames) until(last string) (seen []string) {
	f.t.Helper()
	for f.lines.Scan() {
		var frame struct {
			Type, Key, Reason string
			Spec              json.RawMessage
		}
		require.NoError(f.t, json.Unmarshal(f.lines.Bytes(), &frame))
		if frame.Type != "checkpoint" && frame.Type != "waiting" {
			seen = append(seen, strings.TrimSpace(frame.Type+" "+frame.Key+frame.Reason+string(frame.Spec)))
		}
		if frame.Type == last {
			return seen
		}
	}
	require.Fail(f.t, "the response ended", "%v, and no %s: %v", seen, last, f.lines.Err())
	return nil
}

// A commit reaches those who follow the stream, and a process that stops tells them.
func TestStreamIsServed(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 2)
	p := w.StartWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, streaming(t))
	url := "http://" + address(w, "streams.listen") + "/v1/targets/eu/objects"
	f := watch(w, http.DefaultClient, url+"?watch=true", "")
	require.Equal(t, []string{`upsert 1"v1"`, `upsert 2"v1"`, "end_of_snapshot"}, f.until("end_of_snapshot"))
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1`)
	require.Equal(t, []string{`upsert 1"v2"`}, f.until("upsert"))
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 2`)
	require.Equal(t, []string{`delete 2`}, f.until("delete"))
	require.Equal(t, 421, status(t, address(w, "streams.listen"), "/v1/targets", "evil.example.com", ""), "a page that has its name lead here reads nothing")
	require.Equal(t, 403, status(t, address(w, "streams.listen"), "/v1/targets", "localhost", "http://evil.example.com"))
	p.Stop(t)
	require.Equal(t, []string{"closed draining"}, f.until("closed"))
}

// A process serves streams whose targets another one owns, and is notified of what that one publishes.
func TestStreamOfAnotherProcessIsServed(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	w.Start(streaming(t))
	w.Wait()
	listen, err := w.DB.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer listen.Release()
	_, err = listen.Exec(t.Context(), `LISTEN reconciler_published`)
	require.NoError(t, err)
	w.StartWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, streaming(t))
	f := watch(w, http.DefaultClient, "http://"+address(w, "streams.listen")+"/v1/targets/eu/objects?watch=true", "")
	require.Equal(t, []string{`upsert 1"v1"`, "end_of_snapshot"}, f.until("end_of_snapshot"))
	w.Eventually("who watches is written down", func() bool { return w.Text(`SELECT count(*)::text FROM reconciler.stream_watchers`) == "1" })
	w.DB.Exec(t, `UPDATE apps SET image = 'v3'`)
	require.Equal(t, []string{`upsert 1"v3"`}, f.until("upsert"))
	ctx, cancel := context.WithTimeout(t.Context(), servertest.Deadline)
	defer cancel()
	_, err = listen.Conn().WaitForNotification(ctx)
	require.NoError(t, err, "the owner notifies")
}

// Beyond the loopback interface: TLS, and a token.
func TestStreamIsServedWithTLS(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	authority := httptest.NewUnstartedServer(nil)
	authority.StartTLS()
	defer authority.Close()
	dir := t.TempDir()
	cert, key, token := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "token")
	pair := authority.TLS.Certificates[0]
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	require.NoError(t, os.WriteFile(token, []byte("0123456789abcdef"), 0o600))
	w.StartWith(func(c *config.Config) {
		c.Streams = config.Streams{
			Listen: "127.0.0.1:0", TLSCertFile: cert, TLSKeyFile: key, Tokens: []config.Token{{Name: "eu", File: token, Targets: []string{"eu"}, Allow: []string{config.AllowRead}}},
		}
	}, streaming(t))
	url := "https://" + address(w, "streams.listen") + "/v1/targets/eu/objects?watch=true"
	f := watch(w, authority.Client(), url, "0123456789abcdef")
	require.Equal(t, []string{`upsert 1"v1"`, "end_of_snapshot"}, f.until("end_of_snapshot"))
	refused, err := authority.Client().Get(url)
	require.NoError(t, err)
	require.NoError(t, refused.Body.Close())
	require.Equal(t, http.StatusUnauthorized, refused.StatusCode)
}
