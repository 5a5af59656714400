package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// line leads from the agent to the daemon, and can be cut.
type line struct {
	to      string
	addr    string
	carried sync.WaitGroup

	mu       sync.Mutex // guards what follows
	listener net.Listener
	conns    []net.Conn
}

// openLine makes a line to an address that nothing listens on yet.
func openLine(ctx context.Context) (*line, error) {
	l := &line{to: "127.0.0.1:0", addr: "127.0.0.1:0"}
	for _, addr := range []*string{&l.to, &l.addr} {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", *addr)
		if err != nil {
			return nil, fmt.Errorf("find a port: %w", err)
		}
		*addr = listener.Addr().String()
		_ = listener.Close()
	}
	return l, l.open(ctx)
}

// open makes it carry (again).
func (l *line) open(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", l.addr)
	if err != nil {
		return fmt.Errorf("open the line of the agent: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listener = listener
	l.carried.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return // closed
			}
			out, err := net.Dial("tcp4", l.to) //nolint:noctx // it ends at once, or with close
			if err != nil {
				_ = in.Close()
				continue
			}
			l.carry(in, out)
		}
	})
	return nil
}

func (l *line) carry(in, out net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener == nil {
		_, _ = in.Close(), out.Close()
		return
	}
	l.conns = append(l.conns, in, out)
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		l.carried.Go(func() {
			_, _ = io.Copy(way[1], way[0])
			_, _ = way[0].Close(), way[1].Close()
		})
	}
}

// close cuts every connection; further ones are refused.
func (l *line) close() {
	l.mu.Lock()
	if l.listener != nil {
		_ = l.listener.Close()
		for _, conn := range l.conns {
			_ = conn.Close()
		}
		l.listener, l.conns = nil, nil
	}
	l.mu.Unlock()
	l.carried.Wait()
}
