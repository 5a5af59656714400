package web

import (
	"net"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// dialed is a listener for connections that are in a channel.
type dialed chan net.Conn

func (d dialed) Accept() (net.Conn, error) {
	conn, ok := <-d
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (d dialed) Close() error { close(d); return nil }

func (dialed) Addr() net.Addr { return nil }

// F30: no more connections are accepted than the limit until one of them is closed, and Close ends an Accept that waits for that.
func TestLimitBoundsConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dials := make(dialed, 4)
		for range cap(dials) {
			conn, _ := net.Pipe()
			dials <- conn
		}
		l := limit(dials, 2)
		accepted, ended := make(chan net.Conn, cap(dials)), make(chan error, 1)
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					ended <- err
					return
				}
				accepted <- conn
			}
		}()
		synctest.Wait()
		require.Len(t, accepted, 2)
		first := <-accepted
		require.NoError(t, first.Close())
		require.NoError(t, first.Close()) // a second Close frees no slot
		synctest.Wait()
		require.Len(t, accepted, 2)
		require.Empty(t, ended)
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-ended, net.ErrClosed)
	})
}
