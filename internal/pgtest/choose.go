package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

const (
	envVersion = "RECONCILER_TEST_PG"      // major version; default: see versionDefault
	envFrom    = "RECONCILER_TEST_PG_FROM" // "docker" or "local"; default: whichever is there

	// versionDefault is preferred if RECONCILER_TEST_PG is not set; local binaries of another version do as well then.
	versionDefault = 15

	portTries   = 5
	pullTimeout = 5 * time.Minute
)

// source is a way to get a server on this machine.
type source struct {
	version int
	bin     string // directory of local binaries, or empty
	image   string // image that is on this machine, or empty
	primary int    // port of the server that it is a standby of; 0: it is none
	memory  bool   // keep the data of a container in memory: it is not started again
}

// wish is what the environment asks for.
type wish struct {
	version  int  // preferred or required major version
	exact    bool // no other version will do
	noDocker bool
	noLocal  bool
}

func readWish() (wish, error) {
	w := wish{version: versionDefault}
	if text := os.Getenv(envVersion); text != "" {
		version, err := strconv.Atoi(text)
		if err != nil || version < pgserver.VersionMin {
			return w, fmt.Errorf("%s=%q: want a major version of PostgreSQL from %d on, such as 15", envVersion, text, pgserver.VersionMin)
		}
		w.version, w.exact = version, true
	}
	switch from := os.Getenv(envFrom); from {
	case "":
	case "docker":
		w.noLocal = true
	case "local":
		w.noDocker = true
	default:
		return w, fmt.Errorf("%s=%q: want docker or local", envFrom, from)
	}
	return w, nil
}

// chosen is what choose returns, once for each process.
var chosen = sync.OnceValues(func() (source, error) { return choose(context.Background()) })

// choose prefers an image that is here to binaries that are here, and those to an image that must be fetched first.
func choose(ctx context.Context) (source, error) {
	w, err := readWish()
	if err != nil {
		return source{}, err
	}
	var reasons []error
	docker := false
	if !w.noDocker {
		present, err := pgserver.Images(ctx)
		if err != nil {
			reasons = append(reasons, fmt.Errorf("docker: %w", err))
		}
		docker = err == nil
		for _, repository := range []string{"reconciler-test/postgres", "postgres"} { // scripts/build-images.sh makes the first one
			if image := fmt.Sprintf("%s:%d", repository, w.version); slices.Contains(present, image) {
				return source{version: w.version, image: image}, nil
			}
		}
	}
	if !w.noLocal {
		found, err := pick(pgserver.Installed(ctx), w)
		if err == nil {
			return source{version: found.Major(), bin: found.Dir}, nil
		}
		reasons = append(reasons, fmt.Errorf("local binaries: %w", err))
	}
	if docker {
		ctx, cancel := context.WithTimeout(ctx, pullTimeout)
		defer cancel()
		image := fmt.Sprintf("postgres:%d", w.version)
		_, err := pgserver.Docker(ctx, "pull", "--quiet", image)
		if err == nil {
			return source{version: w.version, image: image}, nil
		}
		reasons = append(reasons, err)
	}
	return source{}, noServer(w.version, reasons)
}

// pick chooses among local versions.
func pick(found []pgserver.Binaries, w wish) (pgserver.Binaries, error) {
	if at := slices.IndexFunc(found, func(b pgserver.Binaries) bool { return b.Major() == w.version }); at >= 0 {
		return found[at], nil
	}
	if len(found) == 0 {
		return pgserver.Binaries{}, pgserver.ErrNotInstalled
	}
	if w.exact {
		return pgserver.Binaries{}, fmt.Errorf("%s asks for PostgreSQL %d, installed: %s", envVersion, w.version, versions(found))
	}
	return found[0], nil
}

func versions(found []pgserver.Binaries) string {
	texts := make([]string, 0, len(found))
	for _, b := range found {
		texts = append(texts, fmt.Sprintf("%d (%s)", b.Major(), b.Dir))
	}
	return strings.Join(texts, ", ")
}

// noServer explains what to do on a machine that is not set up for the tests.
func noServer(version int, reasons []error) error {
	return fmt.Errorf("the tests need PostgreSQL %[1]d and found no way to run it.\n"+
		"Do one of these:\n"+
		"  apt-get install postgresql-%[1]d      (server binaries of the distribution)\n"+
		"  docker pull postgres:%[1]d            (with Docker and a registry)\n"+
		"  make images PG_VERSIONS=%[1]d         (with Docker and Debian packages, as root)\n"+
		"What was tried:\n%[2]w", version, errors.Join(reasons...))
}

// start starts a server in dir. Another process may take its port before it does, hence the tries.
func (s source) start(ctx context.Context, dir string) (*instance, error) {
	for try := 1; ; try++ {
		port, err := pgserver.FreePort(ctx)
		if err != nil {
			return nil, err
		}
		i := &instance{Server: &pgserver.Server{Dir: dir, Port: port, Version: s.version}}
		if s.image != "" {
			i.Container = &pgserver.Container{Name: pgserver.Unique("reconciler-pgtest-"), Image: s.image}
		} else {
			i.Local = pgserver.NewLocal(dir, s.bin)
		}
		// Saved first: another process can end what was begun, whatever happens to this one.
		if err := i.Save(); err != nil {
			return nil, err
		}
		if err = s.create(ctx, i); err == nil {
			err = i.start(ctx)
		}
		if err == nil {
			return i, nil
		}
		err = fmt.Errorf("start PostgreSQL %d for the tests: %w", s.version, err)
		if failed := i.Clear(context.WithoutCancel(ctx)); failed != nil {
			return nil, errors.Join(err, failed)
		}
		if try == portTries || ctx.Err() != nil || pgserver.Probe(ctx, port) == nil {
			return nil, err
		}
	}
}

func (s source) create(ctx context.Context, i *instance) error {
	switch {
	case i.Local != nil && s.primary == 0:
		return createLocal(ctx, i.Local, s.version, i.Port)
	case i.Local != nil:
		return followLocal(ctx, i.Local, s.primary, i.Port)
	case s.primary == 0:
		return createContainer(ctx, i.Container, s.version, i.Port, s.memory)
	default:
		return followContainer(ctx, i.Container, s.primary, i.Port)
	}
}

// follow makes and starts a standby of i in dir.
func (i *instance) follow(ctx context.Context, dir string) (*instance, error) {
	s := source{version: i.Version, primary: i.Port}
	if i.Container != nil {
		s.image = i.Container.Image
	} else {
		s.bin = i.Local.Bin
	}
	return s.start(ctx, dir)
}

func backupArgs(primary int) []string {
	return []string{
		"--host=127.0.0.1", "--port=" + strconv.Itoa(primary), "--username=" + superuser, "--checkpoint=fast", "--write-recovery-conf", "--no-sync",
	}
}

// collation returns arguments of initdb that ask for a linguistic collation where the version can (15 and later): what
// holds only under "C" must fail here.
func collation(version int) []string {
	if version < 15 {
		return nil
	}
	return []string{"--locale=C", "--locale-provider=icu", "--icu-locale=en-US"}
}
