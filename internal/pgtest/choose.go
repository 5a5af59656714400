package pgtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pgreconciler/reconciler/internal/devdb"
)

const (
	envVersion = "RECONCILER_TEST_PG"      // major version; default: see versionDefault
	envFrom    = "RECONCILER_TEST_PG_FROM" // "docker" or "local"; default: whichever is there

	// versionDefault is preferred if RECONCILER_TEST_PG is not set; local binaries of another version do as well then.
	versionDefault = 15

	portTries = 5
)

// source is a way to get a server on this machine.
type source struct {
	version int
	bin     string // directory of local binaries, or empty
	image   string // image that is on this machine, or empty
	primary int    // port of the server that it is a standby of; 0: it is none
}

// wish is what the environment asks for.
type wish struct {
	version  int  // preferred or required major version
	exact    bool // no other version will do
	noDocker bool
	noLocal  bool
}

func readWish(getenv func(string) string) (wish, error) {
	w := wish{version: versionDefault}
	if text := getenv(envVersion); text != "" {
		version, err := strconv.Atoi(text)
		if err != nil || version < devdb.VersionMin {
			return w, fmt.Errorf("%s=%q: want a major version of PostgreSQL from %d on, such as 15", envVersion, text, devdb.VersionMin)
		}
		w.version, w.exact = version, true
	}
	switch from := getenv(envFrom); from {
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

// choose prefers an image that is here to binaries that are here, and those to an image that must be fetched first.
func choose(ctx context.Context) (source, error) {
	w, err := readWish(os.Getenv)
	if err != nil {
		return source{}, err
	}
	var reasons []error
	var docker *docker
	if !w.noDocker {
		docker, err = newDocker(ctx)
		if err != nil {
			reasons = append(reasons, fmt.Errorf("docker: %w", err))
		} else {
			defer docker.close()
			if image := docker.present(ctx, w.version); image != "" {
				return source{version: w.version, image: image}, nil
			}
		}
	}
	if !w.noLocal {
		found, err := pick(devdb.Installed(ctx), w)
		if err == nil {
			return source{version: found.Major(), bin: found.Dir}, nil
		}
		reasons = append(reasons, fmt.Errorf("local binaries: %w", err))
	}
	if docker != nil {
		image, err := docker.pull(ctx, w.version)
		if err == nil {
			return source{version: w.version, image: image}, nil
		}
		reasons = append(reasons, fmt.Errorf("docker: %w", err))
	}
	return source{}, noServer(w.version, reasons)
}

// pick chooses among local versions.
func pick(found []devdb.Binaries, w wish) (devdb.Binaries, error) {
	if at := slices.IndexFunc(found, func(b devdb.Binaries) bool { return b.Major() == w.version }); at >= 0 {
		return found[at], nil
	}
	if len(found) == 0 {
		return devdb.Binaries{}, devdb.ErrNotInstalled
	}
	if w.exact {
		return devdb.Binaries{}, fmt.Errorf("%s asks for PostgreSQL %d, installed: %s", envVersion, w.version, versions(found))
	}
	return found[0], nil
}

func versions(found []devdb.Binaries) string {
	texts := make([]string, 0, len(found))
	for _, b := range found {
		texts = append(texts, fmt.Sprintf("%d (%s)", b.Major(), b.Dir))
	}
	return strings.Join(texts, ", ")
}

// noServer is what a person reads who runs the tests on a machine that is not set up for them.
func noServer(version int, reasons []error) error {
	return fmt.Errorf("the tests need PostgreSQL %[1]d and found no way to run it.\n"+
		"Do one of these:\n"+
		"  apt-get install postgresql-%[1]d      (server binaries of the distribution)\n"+
		"  docker pull postgres:%[1]d            (with Docker and a registry)\n"+
		"  make images PG_VERSIONS=%[1]d         (with Docker and Debian packages, as root)\n"+
		"What was tried:\n%[2]w", version, errors.Join(reasons...))
}

// start starts a server in dir. Between choosing a free port and using it somebody else may take it, hence the tries.
func (s source) start(ctx context.Context, dir string) (*instance, error) {
	for try := 1; ; try++ {
		i, err := s.startOnce(ctx, dir)
		if err == nil {
			return i, nil
		}
		err = fmt.Errorf("start PostgreSQL %d for the tests: %w", s.version, err)
		if i == nil {
			return nil, err
		}
		if failed := i.clear(context.WithoutCancel(ctx)); failed != nil {
			return nil, errors.Join(err, failed)
		}
		if try == portTries || ctx.Err() != nil || isFree(ctx, i.Port) {
			return nil, err
		}
	}
}

// startOnce returns the instance also when it fails after it was made.
func (s source) startOnce(ctx context.Context, dir string) (*instance, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	i := &instance{Dir: dir, Port: port, Version: s.version}
	if s.image != "" {
		i.Container = newContainer(s.image)
	} else {
		i.Local = newLocal(dir, s.bin)
	}
	// Saved first: what was begun can be ended by others, whatever happens to this process.
	if err := i.save(); err != nil {
		return nil, err
	}
	if err := s.create(ctx, i); err != nil {
		return i, err
	}
	if err := i.engine().start(ctx); err != nil {
		return i, err
	}
	return i, i.awaitReady(ctx)
}

func (s source) create(ctx context.Context, i *instance) error {
	if s.primary != 0 {
		return i.engine().follow(ctx, s.primary, i.Port)
	}
	return i.engine().create(ctx, s.version, i.Port)
}

func isFree(ctx context.Context, port int) bool {
	_, err := listen(ctx, port)
	return err == nil
}

// The ports of servers are below those that Linux and others give to outgoing connections and to listeners on any port: one
// of these would take the port before the server has it, or while it is stopped.
const (
	portMin = 20_000
	portMax = 32_000
)

func freePort(ctx context.Context) (port int, err error) {
	for range 20 {
		port, err = listen(ctx, portMin+rand.IntN(portMax-portMin))
		if err == nil {
			return port, nil
		}
	}
	return 0, err
}

// listen takes a port and gives it back at once.
func listen(ctx context.Context, port int) (int, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return 0, err
	}
	address, err := netip.ParseAddrPort(listener.Addr().String())
	return int(address.Port()), errors.Join(err, listener.Close())
}
