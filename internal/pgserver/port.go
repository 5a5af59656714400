package pgserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
)

// The ports of servers are below those that Linux and others give to outgoing connections and to listeners on any port: one
// of these would take the port before the server has it, or while it is stopped.
const (
	portMin = 20_000
	portMax = 32_000
)

// FreePort returns a port of 127.0.0.1 for a server. Another process can take it before the server does.
func FreePort(ctx context.Context) (port int, err error) {
	for range 20 {
		port = portMin + rand.IntN(portMax-portMin)
		if err = Probe(ctx, port); err == nil {
			return port, nil
		}
	}
	return 0, err
}

// Probe takes a port and gives it back at once. It returns an error if a server could not listen on it.
func Probe(ctx context.Context, port int) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("find a free port: %w", err)
	}
	return listener.Close()
}
