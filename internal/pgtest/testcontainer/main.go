// Command testcontainer makes the container of a test server with Testcontainers, without starting it. Package pgtest runs
// it as a separate program, so that the libraries of Docker are not compiled into every test binary.
//
// It reads what to make from standard input, in JSON, and gives up when its input ends, as it does when the test is killed.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/moby/moby/api/types/container"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// spec is what package pgtest writes.
type spec struct {
	Name, Image, User string
	Env               map[string]string
	Entrypoint, Cmd   []string
	Host              container.HostConfig
}

func main() {
	if err := run(context.Background(), os.Stdin); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in io.Reader) error {
	var s spec
	decoder := json.NewDecoder(in)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return fmt.Errorf("read what to make: %w", err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1)
	}()
	// Its own reaper is an image that not every machine can fetch; package pgtest has one.
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		return err
	}
	log.SetDefault(log.NewNoopLogger())
	_, err := testcontainers.Run(ctx, s.Image,
		testcontainers.WithName(s.Name),
		testcontainers.WithLabels(map[string]string{"reconciler.pgtest": "true"}),
		testcontainers.WithEnv(s.Env),
		testcontainers.WithEntrypoint(s.Entrypoint...),
		testcontainers.WithCmd(s.Cmd...),
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithConfigModifier(func(config *container.Config) { config.User = s.User }),
		testcontainers.WithHostConfigModifier(func(host *container.HostConfig) { *host = s.Host }),
		testcontainers.WithNoStart(),
	)
	return err
}
