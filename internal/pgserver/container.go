package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// dockerTimeout is for an engine's first answer. It is on this machine or near it; a longer silence means there is none.
const dockerTimeout = 30 * time.Second

// Container is a server in a Docker container.
type Container struct {
	Name  string `json:"name"` // known before the container is made, so that a half-made one can be removed
	Image string `json:"image"`
}

// Run makes and starts the container, with settings such as fsync=off.
func (c *Container) Run(ctx context.Context, label string, port int, password string, settings ...string) error {
	args := []string{
		"run", "--detach", "--name", c.Name, "--label", label, "--publish", fmt.Sprintf("127.0.0.1:%d:5432", port),
		"--env", "POSTGRES_PASSWORD", c.Image, "postgres",
	}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	_, err := docker(ctx, "POSTGRES_PASSWORD="+password, args...) // Every user can read arguments.
	return err
}

// Start starts the container.
func (c *Container) Start(ctx context.Context) error {
	_, err := Docker(ctx, "start", c.Name)
	return err
}

// Stop uses the postmaster's own signals; Docker's stop would kill it after a while.
func (c *Container) Stop(ctx context.Context, mode Mode) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	signal := "INT"
	if mode == Immediate {
		signal = "QUIT"
	}
	_, err := Docker(ctx, "kill", "--signal", signal, c.Name)
	if err == nil {
		_, err = Docker(ctx, "wait", c.Name)
	}
	return unlessGone(err)
}

// Alive returns an error if the started server has ended.
func (c *Container) Alive(ctx context.Context) error {
	out, err := Docker(ctx, "inspect", "--format", "{{.State.Running}} {{.State.ExitCode}}", c.Name)
	if code, ended := strings.CutPrefix(out, "false "); ended {
		return fmt.Errorf("container %s has ended with exit code %s", c.Name, strings.TrimSpace(code))
	}
	return err
}

// Destroy removes the container.
func (c *Container) Destroy(ctx context.Context) error {
	for {
		_, err := Docker(ctx, "rm", "--force", "--volumes", c.Name)
		// A process that gave up has asked for it before, and the engine is still at it.
		if failed, ok := errors.AsType[*dockerError](err); !ok || !strings.Contains(failed.output, "already in progress") {
			return unlessGone(err)
		}
		<-time.After(pingPeriod)
	}
}

// Log returns the end of the server's log.
func (c *Container) Log(ctx context.Context) (string, error) {
	return Docker(ctx, "logs", "--tail", "2000", c.Name)
}

// Script runs in another container, which has the server's volumes.
func (c *Container) Script(ctx context.Context, text string) error {
	_, err := Docker(ctx, "run", "--rm", "--volumes-from", c.Name, "--entrypoint", "/bin/sh", c.Image, "-c", `cd "$PGDATA" && `+text)
	return err
}

// Images returns the names of the images that the Docker engine has, or why there is no engine.
func Images(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, dockerTimeout)
	defer cancel()
	out, err := Docker(ctx, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}")
	return strings.Fields(out), err
}

// Docker runs the docker command and returns what it prints.
func Docker(ctx context.Context, args ...string) (string, error) { return docker(ctx, "", args...) }

// docker is Docker with another variable of the environment.
func docker(ctx context.Context, variable string, args ...string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = append(cmd.Environ(), variable)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of reach of the terminal's Ctrl-C
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", &dockerError{args[0], string(out), err}
	}
	return string(out), nil
}

// dockerError is a failure of the docker command.
type dockerError struct {
	command, output string
	err             error
}

func (e *dockerError) Error() string {
	if errors.Is(e.err, exec.ErrNotFound) {
		return "there is no docker command"
	}
	return fmt.Sprintf("docker %s: %v: %s", e.command, e.err, strings.TrimSpace(e.output))
}

func (e *dockerError) Unwrap() error { return e.err }

// unlessGone drops the error that a container does not exist or does not run. The docker command has no codes for it.
func unlessGone(err error) error {
	failed, ok := errors.AsType[*dockerError](err)
	if ok && (strings.Contains(failed.output, "No such container") || strings.Contains(failed.output, "is not running")) {
		return nil
	}
	return err
}
