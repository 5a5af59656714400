package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

const (
	// The engine is on this machine or near it; a longer silence means there is none.
	dockerTimeout = 10 * time.Second
	pullTimeout   = 5 * time.Minute
)

// docker is an engine that answers.
type docker struct{ client *client.Client }

func newDocker(ctx context.Context) (*docker, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	prepareTestcontainers()
	// Whether there is an engine it remembers for good, also when it was not given the time to see.
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	c, err := testcontainers.NewDockerClientWithOpts(patient)
	if err != nil {
		return nil, err
	}
	d := &docker{client: c.Client}
	ctx, cancel = context.WithTimeout(ctx, dockerTimeout)
	defer cancel()
	if _, err := d.client.Ping(ctx, client.PingOptions{}); err != nil {
		d.close()
		return nil, fmt.Errorf("no engine answers: %w", err)
	}
	return d, nil
}

// prepareTestcontainers has it leave out its own reaper, which is an image of its own that not every
// machine can fetch, and its chatter.
var prepareTestcontainers = sync.OnceFunc(func() {
	_ = os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true") // Fails only for malformed names.
	log.SetDefault(log.NewNoopLogger())
})

func (d *docker) close() { _ = d.client.Close() } // Closes idle connections only.

// images are the names under which a version is looked for, the one that scripts/build-images.sh makes first.
func images(version int) []string {
	return []string{
		fmt.Sprintf("reconciler-test/postgres:%d", version),
		fmt.Sprintf("postgres:%d", version),
	}
}

// present returns the image of a version that the engine has already, or "".
func (d *docker) present(ctx context.Context, version int) string {
	for _, image := range images(version) {
		if _, err := d.client.ImageInspect(ctx, image); err == nil {
			return image
		}
	}
	return ""
}

// pull fetches the official image.
func (d *docker) pull(ctx context.Context, version int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	image := fmt.Sprintf("postgres:%d", version)
	response, err := d.client.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return "", fmt.Errorf("pull postgres:%d: %w", version, err)
	}
	if err := errors.Join(response.Wait(ctx), response.Close()); err != nil {
		return "", fmt.Errorf("pull postgres:%d: %w", version, err)
	}
	return image, nil
}
