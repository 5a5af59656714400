package pgtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

const (
	shmBytes = 512 << 20 // parallel queries share memory there; Docker's default of 64 MB is too little
	// sessionShares is the weight of a server's container among processes, of which each has 1024.
	sessionShares = 16 * 1024
	memoryData    = "/pgdata" // the images have volumes below /var/lib/postgresql, at different places
)

// spec is what the program in the directory testcontainer makes.
type spec struct {
	Name, Image, User string
	Env               map[string]string
	Entrypoint, Cmd   []string
	Host              map[string]any // as Docker's API names them
}

// createContainer makes the container with a fixed port: Docker would choose another one after each stop. Data in memory is
// gone when the container stops.
func createContainer(ctx context.Context, c *pgserver.Container, version, port int, memory bool) error {
	cmd := []string{"postgres"}
	for _, setting := range settings() {
		cmd = append(cmd, "-c", setting)
	}
	initdb := append([]string{"--auth=trust", "--encoding=UTF8", "--no-sync"}, collation(version)...)
	s := spec{
		Name: c.Name, Image: c.Image, Cmd: cmd,
		Env:  map[string]string{"POSTGRES_HOST_AUTH_METHOD": "trust", "POSTGRES_INITDB_ARGS": strings.Join(initdb, " ")},
		Host: map[string]any{"PortBindings": map[string]any{"5432/tcp": []any{map[string]string{"HostIp": "127.0.0.1", "HostPort": strconv.Itoa(port)}}}},
	}
	if memory {
		s.Env["PGDATA"], s.Host["Tmpfs"] = memoryData, map[string]string{memoryData: ""}
	}
	return makeContainer(ctx, s)
}

// followScript begins with a base backup when the data directory is empty.
const followScript = `umask 077 && if [ ! -s "$PGDATA/PG_VERSION" ]; then
	mkdir -p "$PGDATA" && pg_basebackup "$@" --pgdata="$PGDATA" || exit 1
fi`

// followContainer makes a container in the network of this machine: it reaches the primary where tests do.
func followContainer(ctx context.Context, c *pgserver.Container, primary, port int) error {
	own := []string{"port=" + strconv.Itoa(port), "listen_addresses=127.0.0.1", "unix_socket_directories="}
	script := followScript + "\nexec postgres -c '" + strings.Join(append(settings(), own...), "' -c '") + "'"
	return makeContainer(ctx, spec{
		Name: c.Name, Image: c.Image, User: superuser,
		Entrypoint: append([]string{"/bin/bash", "-c", script, "standby"}, backupArgs(primary)...),
		Host:       map[string]any{"NetworkMode": "host"},
	})
}

// makeContainer runs the program from its source: few machines need it.
func makeContainer(ctx context.Context, s spec) error {
	// Lets the sessions of the server compete with the tests one by one. Without systemd, containers are in one
	// control group, and it weighs as much as a single process outside of any: on a busy machine the whole server gets
	// the time of one of the tests' threads, and a statement takes forty times as long.
	driver, err := pgserver.Docker(ctx, "info", "--format", "{{.CgroupDriver}}")
	if err != nil {
		return err
	}
	if strings.TrimSpace(driver) == "cgroupfs" {
		s.Host["CgroupParent"], s.Host["CpuShares"] = "/", sessionShares
	}
	s.Host["ShmSize"] = shmBytes
	_, source, _, _ := runtime.Caller(0)
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(filepath.Dir(source), "testcontainer"), "run", ".")
	cmd.WaitDelay = time.Second // `go run` does not kill the program: it ends with its input
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := json.NewEncoder(in).Encode(s); err != nil { // it fits into the pipe
		return errors.Join(err, in.Close())
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make container %s: %w\n%s", s.Name, err, out)
	}
	return nil
}
