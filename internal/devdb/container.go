package devdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

const containerPort = "5432/tcp"

// container is a server in a Docker container. The docker command is used, and with it whatever engine, context and
// credentials it is set up for.
type container struct {
	Name  string `json:"name"` // known before the container is made, so that a half-made one can be removed
	Image string `json:"image"`
}

func newContainer(image string) *container {
	return &container{Name: "reconciler-dev-" + strings.ToLower(rand.Text()[:12]), Image: image}
}

// dockerAnswers returns nil if there is an engine to talk to.
func dockerAnswers(ctx context.Context) error {
	_, err := docker(ctx, nil, "version", "--format", "{{.Server.Version}}")
	return err
}

// presentImage returns an image that is here, or the one to fetch.
func presentImage(ctx context.Context) string {
	for _, image := range images {
		if _, err := docker(ctx, nil, "image", "inspect", image); err == nil {
			return image
		}
	}
	return images[len(images)-1]
}

func (c *container) start(ctx context.Context, password string, settings []string) (int, <-chan struct{}, error) {
	args := []string{
		"run", "--detach", "--name", c.Name, "--label", "reconciler.dev=true", "--publish", "127.0.0.1::" + containerPort,
		"--env", "POSTGRES_PASSWORD", c.Image, "postgres",
	}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	// By the environment: arguments can be read by every user.
	if _, err := docker(ctx, []string{"POSTGRES_PASSWORD=" + password}, args...); err != nil {
		return 0, nil, err
	}
	port, err := c.port(ctx)
	if err != nil {
		return 0, nil, err
	}
	return port, c.watch(), nil
}

func (c *container) port(ctx context.Context) (int, error) {
	out, err := docker(ctx, nil, "port", c.Name, containerPort)
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(out, "\n")
	_, text, err := net.SplitHostPort(strings.TrimSpace(first))
	if err != nil {
		return 0, fmt.Errorf("find the port of container %s: %w", c.Name, err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("find the port of container %s: %w", c.Name, err)
	}
	return port, nil
}

// watch waits for the container's end. It lives as long as the container does: stop ends both.
func (c *container) watch() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = docker(context.Background(), nil, "wait", c.Name) // However it ends, the container is gone.
	}()
	return ended
}

func (c *container) stop(ctx context.Context) error {
	// SIGQUIT is PostgreSQL's immediate stop: nothing here is to be kept but by --keep, and then it recovers.
	_, err := docker(ctx, nil, "kill", "--signal", "QUIT", c.Name)
	if err != nil && !isGone(err) {
		return err
	}
	if err == nil {
		_, err = docker(ctx, nil, "wait", c.Name)
		if err != nil && !isGone(err) {
			return err
		}
	}
	return nil
}

func (c *container) remove(ctx context.Context) error {
	_, err := docker(ctx, nil, "rm", "--force", "--volumes", c.Name)
	if err != nil && !isGone(err) {
		return err
	}
	return nil
}

func (c *container) log(ctx context.Context) string {
	out, err := docker(ctx, nil, "logs", "--tail", "20", c.Name)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	return out
}

func (c *container) describe() string { return fmt.Sprintf("in Docker image %s", c.Image) }

func (c *container) restart(int) string { return "docker start " + c.Name }

// dockerError is what the docker command said.
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

// isGone reports whether the container does not exist, or does not run. The docker command has no codes for it.
func isGone(err error) bool {
	said, ok := errors.AsType[*dockerError](err)
	return ok && (strings.Contains(said.output, "No such container") || strings.Contains(said.output, "is not running"))
}

func docker(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = append(os.Environ(), env...)
	detach(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", &dockerError{args[0], string(out), err}
	}
	return string(out), nil
}
