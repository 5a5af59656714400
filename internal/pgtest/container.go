package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	containertypes "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

const (
	serverPort = "5432/tcp"
	shmBytes   = 512 << 20 // parallel queries share memory there; Docker's default of 64 MB is too little
)

// container is a server in a container of either of the images.
type container struct {
	Name  string `json:"name"` // known before the container is made, so that a half-made one can be removed
	Image string `json:"image"`
}

func newContainer(image string) *container {
	return &container{Name: uniqueName("reconciler-pgtest"), Image: image}
}

// create makes the container with a fixed port: Docker would choose another one after each stop.
func (c *container) create(ctx context.Context, version, port int) error {
	prepareTestcontainers()
	shares, err := c.fairShare(ctx)
	if err != nil {
		return err
	}
	cmd := []string{"postgres"}
	for _, setting := range settings() {
		cmd = append(cmd, "-c", setting)
	}
	_, err = testcontainers.Run(ctx, c.Image,
		testcontainers.WithName(c.Name),
		testcontainers.WithLabels(map[string]string{"reconciler.pgtest": "true"}),
		testcontainers.WithEnv(map[string]string{
			"POSTGRES_HOST_AUTH_METHOD": "trust",
			"POSTGRES_INITDB_ARGS":      strings.Join(initdbArgs(version), " "),
		}),
		testcontainers.WithCmd(cmd...),
		testcontainers.WithExposedPorts(serverPort),
		testcontainers.WithHostConfigModifier(func(host *containertypes.HostConfig) {
			host.ShmSize = shmBytes
			shares(host)
			host.PortBindings = network.PortMap{
				network.MustParsePort(serverPort): {{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: strconv.Itoa(port)}},
			}
		}),
		testcontainers.WithNoStart(),
	)
	return err
}

// sessionShares is the weight of a server's container among processes, of which each has 1024.
const sessionShares = 16 * 1024

// fairShare lets the sessions of the server compete with the tests one by one. Without systemd, containers are in one
// control group, and it weighs as much as a single process outside of any: on a busy machine the whole server gets
// the time of one of the tests' threads, and a statement takes forty times as long.
func (c *container) fairShare(ctx context.Context) (set func(*containertypes.HostConfig), err error) {
	set = func(*containertypes.HostConfig) {}
	err = c.do(ctx, func(cli *client.Client) error {
		answer, err := cli.Info(ctx, client.InfoOptions{})
		if err == nil && answer.Info.CgroupDriver == "cgroupfs" {
			set = func(host *containertypes.HostConfig) { host.CgroupParent, host.CPUShares = "/", sessionShares }
		}
		return err
	})
	return set, err
}

func (c *container) start(ctx context.Context) error {
	return c.do(ctx, func(cli *client.Client) error {
		_, err := cli.ContainerStart(ctx, c.Name, client.ContainerStartOptions{})
		return err
	})
}

// stop uses the postmaster's own signals; Docker's stop would kill it after a while.
func (c *container) stop(ctx context.Context, mode stopMode) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	signal := "SIGINT"
	if mode == immediate {
		signal = "SIGQUIT"
	}
	return c.do(ctx, func(cli *client.Client) error {
		// Before the signal: the end must not be missed.
		end := cli.ContainerWait(ctx, c.Name, client.ContainerWaitOptions{Condition: containertypes.WaitConditionNextExit})
		if _, err := cli.ContainerKill(ctx, c.Name, client.ContainerKillOptions{Signal: signal}); err != nil {
			return err
		}
		select {
		case err := <-end.Error:
			return err
		case <-end.Result:
			return nil
		}
	})
}

func (c *container) alive(ctx context.Context) error {
	return c.do(ctx, func(cli *client.Client) error {
		found, err := cli.ContainerInspect(ctx, c.Name, client.ContainerInspectOptions{})
		if err != nil {
			return err
		}
		if state := found.Container.State; !state.Running {
			return fmt.Errorf("ended with exit code %d", state.ExitCode)
		}
		return nil
	})
}

func (c *container) destroy(ctx context.Context) error {
	return c.do(ctx, func(cli *client.Client) error {
		_, err := cli.ContainerRemove(ctx, c.Name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if errdefs.IsConflict(err) { // A reaper that gave up has asked before, and the engine is still at it.
			return c.awaitRemoval(ctx, cli)
		}
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (c *container) awaitRemoval(ctx context.Context, cli *client.Client) error {
	tick := time.NewTicker(pingPeriod)
	defer tick.Stop()
	for {
		_, err := cli.ContainerInspect(ctx, c.Name, client.ContainerInspectOptions{})
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("container %s is still being removed: %w", c.Name, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func (c *container) readLog(ctx context.Context) (string, error) {
	var text strings.Builder
	err := c.do(ctx, func(cli *client.Client) (err error) {
		stream, err := cli.ContainerLogs(ctx, c.Name, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "2000"})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stream.Close()) }()
		_, err = stdcopy.StdCopy(&text, io.MultiWriter(&text), stream)
		return err
	})
	return text.String(), err
}

// script runs in a container of its own that has the server's volumes.
func (c *container) script(ctx context.Context, text string) (err error) {
	prepareTestcontainers()
	helper, err := testcontainers.Run(ctx, c.Image,
		testcontainers.WithName(uniqueName("reconciler-pgtest")),
		testcontainers.WithLabels(map[string]string{"reconciler.pgtest": "true"}),
		testcontainers.WithEntrypoint("/bin/sh", "-c", `cd "$PGDATA" && `+text),
		testcontainers.WithCmd(),
		testcontainers.WithHostConfigModifier(func(host *containertypes.HostConfig) { host.VolumesFrom = []string{c.Name} }),
		testcontainers.WithWaitStrategy(wait.ForExit()),
	)
	if helper != nil {
		defer func() { err = errors.Join(err, helper.Terminate(context.WithoutCancel(ctx))) }()
	}
	if err != nil {
		return err
	}
	state, err := helper.State(ctx)
	if err == nil && state.ExitCode != 0 {
		err = fmt.Errorf("%s: exit code %d", text, state.ExitCode)
	}
	return err
}

// do lends an engine's client for one action.
func (c *container) do(ctx context.Context, action func(*client.Client) error) error {
	d, err := newDocker(ctx)
	if err != nil {
		return err
	}
	defer d.close()
	if err := action(d.client); err != nil {
		return fmt.Errorf("container %s: %w", c.Name, err)
	}
	return nil
}
