package faults_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Where the line between an agent and its server breaks.
const (
	cutAtBytes  = "at bytes"
	cutAtFrame  = "after a frame"
	cutAtReport = "before a report"
	cutAtAnswer = "before the answer to a report" // which the server has taken
)

var cuts = []string{cutAtBytes, cutAtBytes, cutAtFrame, cutAtReport, cutAtAnswer}

var errCut = errors.New("cut by the test")

// cut returns what is read from an agent and its server until the line breaks, at the nth frame or report.
func cut(where string, agent, server net.Conn, n int, broken func(where string)) (fromAgent, fromServer io.Reader) {
	snap := func() error {
		broken(where)
		return errors.Join(errCut, agent.Close(), server.Close())
	}
	reports := &reportCut{Conn: agent, left: n, answered: where == cutAtAnswer, snap: snap}
	switch where {
	case cutAtFrame:
		return agent, &frameCut{server, n, snap}
	case cutAtReport:
		return reports, server
	case cutAtAnswer:
		return reports, &answerCut{server, reports}
	}
	if rand.IntN(2) == 0 {
		return &cutConn{agent, 1 << (8 + rand.IntN(10))}, server
	}
	return agent, &cutConn{server, 1 << (8 + rand.IntN(10))}
}

// frameCut breaks right behind the last byte of a frame: all of it has arrived, and nothing after it.
type frameCut struct {
	net.Conn

	left int // frames
	snap func() error
}

func (c *frameCut) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, c.snap()
	}
	n, err := c.Conn.Read(b)
	for end := 0; ; {
		i := bytes.Index(b[end:n], []byte("}\n"))
		if i < 0 {
			return n, err
		}
		end += i + 2
		if c.left--; c.left == 0 {
			return end, nil
		}
	}
}

// reportCut breaks before a report, or lets it pass for answerCut.
type reportCut struct {
	net.Conn

	left     int // reports
	answered bool
	passed   atomic.Bool
	snap     func() error
}

func (c *reportCut) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.HasPrefix(b[:n], []byte("POST ")) {
		if c.left--; c.left == 0 {
			if !c.answered {
				return 0, c.snap()
			}
			c.passed.Store(true)
		}
	}
	return n, err
}

// answerCut breaks before the answer to the report that was let pass.
type answerCut struct {
	net.Conn

	reports *reportCut
}

func (c *answerCut) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.reports.passed.Load() {
		return 0, c.reports.snap()
	}
	return n, err
}

func TestLinesBreakAtFramesAndReports(t *testing.T) {
	t.Parallel()
	var reports atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			reports.Add(1)
			return
		}
		_, _ = io.WriteString(w, "{\"a\": 1}\n{\"b\": 2}\n{\"c\": 3}\n")
	}))
	defer server.Close()
	// over does requests over one connection, and returns what arrives until it breaks.
	over := func(where string, do func(*http.Client, string)) (broken int32) {
		var breaks atomic.Int32
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		served := make(chan struct{})
		go func() {
			defer close(served)
			agent, err := l.Accept()
			if err != nil {
				return
			}
			to, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
			if err != nil {
				return
			}
			here, there := cut(where, agent, to, 2, func(string) { breaks.Add(1) })
			relay(agent, to, here, there)
		}()
		transport := &http.Transport{MaxConnsPerHost: 1}
		do(&http.Client{Transport: transport}, "http://"+l.Addr().String())
		transport.CloseIdleConnections()
		l.Close()
		<-served
		return breaks.Load()
	}
	var have []byte
	require.EqualValues(t, 1, over(cutAtFrame, func(c *http.Client, url string) {
		answer, err := c.Get(url)
		require.NoError(t, err)
		have, err = io.ReadAll(answer.Body)
		require.Error(t, err)
		answer.Body.Close()
	}))
	require.Equal(t, "{\"a\": 1}\n{\"b\": 2}\n", string(have))
	report := func(c *http.Client, url string) {
		for i := range 2 {
			answer, err := c.Post(url, "application/json", strings.NewReader("{}"))
			if i == 1 {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			answer.Body.Close()
		}
	}
	require.EqualValues(t, 1, over(cutAtReport, report))
	require.EqualValues(t, 1, reports.Swap(0), "the second one is lost")
	require.EqualValues(t, 1, over(cutAtAnswer, report))
	require.EqualValues(t, 2, reports.Load(), "the server has both")
}
