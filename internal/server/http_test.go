package server_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// address returns where a server that was just started listens.
func address(w *servertest.World, key string) (addr string) {
	w.T.Helper()
	w.Eventually("it listens", func() bool {
		for _, line := range w.Logged("msg=listening key=" + key + " ") {
			_, addr, _ = strings.Cut(line, "address=")
		}
		return addr != ""
	})
	return addr
}

// Requests whose bodies never come do not hold their connections for ever, and never more of them than a few: the descriptors are for the
// database and the targets.
func TestF30_RequestsThatDoNotEndAreEnded(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.StartWith(func(c *config.Config) { c.Listen = "127.0.0.1:0" }, servertest.Named("eu", servertest.NewPlace()))
	addr := address(w, "listen")
	var idle sync.WaitGroup
	var mu sync.Mutex
	var open int
	for range 130 { // two more than are served at once
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, "POST /readyz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx")
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(servertest.Deadline)))
		idle.Go(func() {
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, net.ErrClosed) || isTimeout(err) {
				mu.Lock()
				defer mu.Unlock()
				open++
			}
		})
	}
	idle.Wait()
	require.Zero(t, open, "connections are still open")
	resp, err := http.Get("http://" + addr + "/healthz")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

func isTimeout(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return ok && netErr.Timeout()
}

// A page of another site that has its name lead here reads nothing.
func TestF30_OnlyNamesOfOurOwnAreServed(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.StartWith(func(c *config.Config) {
		c.Listen, c.PprofListen, c.ListenNames = "127.0.0.1:0", "127.0.0.1:0", "status.example.org, Other.Example.org"
	}, servertest.Named("eu", servertest.NewPlace()))
	web, prof := address(w, "listen"), address(w, "pprof_listen")
	for name, c := range map[string]struct {
		host, origin string
		want         int
	}{
		"Address":          {"127.0.0.1:7433", "", 200},
		"AnotherAddress":   {"10.1.2.3", "", 200},
		"Address6":         {"[::1]:7433", "", 200},
		"Localhost":        {"localhost:7433", "", 200},
		"ServiceName":      {"reconciler:7433", "", 200},
		"Configured":       {"status.example.org", "", 200},
		"ConfiguredToo":    {"other.example.ORG.:80", "", 200},
		"Foreign":          {"evil.example.com", "", 421},
		"ForeignPort":      {"evil.example.com:7433", "", 421},
		"LooksLikeOurs":    {"127.0.0.1.evil.com", "", 421},
		"LooksLikeOurs2":   {"localhost.evil.com", "", 421},
		"OwnOrigin":        {"localhost:7433", "http://localhost:7433", 200},
		"ForeignOrigin":    {"localhost:7433", "http://evil.example.com", 403},
		"OriginOfNobody":   {"localhost:7433", "null", 403},
		"OriginOfAnother":  {"localhost:7433", "http://localhost:8000", 403},
		"NameOfNobodyElse": {"", "", 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for addr, path := range map[string]string{web: "/healthz", prof: "/debug/pprof/cmdline"} {
				require.Equal(t, c.want, status(t, addr, path, c.host, c.origin), path)
			}
		})
	}
	require.Equal(t, 421, status(t, web, "/", "evil.example.com", ""))
	require.Equal(t, 421, status(t, web, "/metrics", "evil.example.com", ""))
}

// status asks with a Host header; without one, as before HTTP/1.1.
func status(t *testing.T, addr, path, host, origin string) int {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	request := "GET " + path + " HTTP/1.1\r\nConnection: close\r\nHost: " + host + "\r\n"
	if host == "" {
		request = "GET " + path + " HTTP/1.0\r\n"
	}
	if origin != "" {
		request += "Origin: " + origin + "\r\n"
	}
	_, err = io.WriteString(conn, request+"\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}
