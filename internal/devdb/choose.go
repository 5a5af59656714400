package devdb

import (
	"context"
	"fmt"
	"slices"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// images are preferred in this order; imageDefault is fetched when none is here.
var images = []string{"postgres:18", "postgres:17", "postgres:16", "postgres:15", "postgres:14"}

const (
	imageDefault = "postgres:17"

	remedy = `Do one of these:
  apt-get install postgresql      (server binaries of the distribution)
  docker pull postgres:17         (with Docker and a registry)`
)

// choose finds a way to get a server on this machine.
func (s *Server) choose(ctx context.Context, image string) error {
	if image != "" {
		if _, err := pgserver.Images(ctx); err != nil {
			return fmt.Errorf("run image %s: %w", image, err)
		}
		s.inContainer(image)
		return nil
	}
	binaries, localErr := newest(pgserver.Installed(ctx))
	if localErr == nil {
		s.server.Local = pgserver.NewLocal(s.Dir, binaries.Dir)
		s.Version = fmt.Sprintf("%s (%s)", binaries.Version, binaries.Dir)
		return nil
	}
	present, dockerErr := pgserver.Images(ctx)
	if dockerErr != nil {
		return fmt.Errorf("found no way to run PostgreSQL.\n%s\nWhat was tried:\nlocal binaries: %w\nDocker: %w", remedy, localErr, dockerErr)
	}
	s.inContainer(pick(present))
	return nil
}

func (s *Server) inContainer(image string) {
	s.server.Container = &pgserver.Container{Name: pgserver.Unique("reconciler-dev-"), Image: image}
	s.Version = "in Docker image " + image
}

// newest returns the newest of the servers that are installed, in this order.
func newest(found []pgserver.Binaries) (pgserver.Binaries, error) {
	if len(found) == 0 {
		return pgserver.Binaries{}, pgserver.ErrNotInstalled
	}
	if b := found[0]; b.Major() < pgserver.VersionMin {
		return b, fmt.Errorf("PostgreSQL %s in %s is too old: %d is the oldest supported version", b.Version, b.Dir, pgserver.VersionMin)
	}
	return found[0], nil
}

// pick returns the image to run.
func pick(present []string) string {
	for _, image := range images {
		if slices.Contains(present, image) {
			return image
		}
	}
	return imageDefault
}
