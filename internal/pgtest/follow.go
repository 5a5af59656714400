package pgtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	containertypes "github.com/moby/moby/api/types/container"
	"github.com/testcontainers/testcontainers-go"
)

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

// follow takes a base backup; the server streams from then on.
func (l *local) follow(ctx context.Context, primary, port int) error {
	if err := l.makeData(); err != nil {
		return err
	}
	if err := l.run(ctx, "pg_basebackup", append(backupArgs(primary), "--pgdata="+l.Data)...); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(l.Data, "postgresql.auto.conf"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()               // nothing is buffered
	_, err = fmt.Fprintf(file, "port = '%d'\n", port) // of two values the later one counts
	return err
}

func backupArgs(primary int) []string {
	return []string{
		"--host=127.0.0.1", "--port=" + strconv.Itoa(primary), "--username=" + superuser, "--checkpoint=fast", "--write-recovery-conf", "--no-sync",
	}
}

// followScript begins with a base backup when the data directory is empty.
const followScript = `umask 077 && if [ ! -s "$PGDATA/PG_VERSION" ]; then
	mkdir -p "$PGDATA" && pg_basebackup "$@" --pgdata="$PGDATA" || exit 1
fi`

// follow makes a container in the network of this machine: it reaches the primary where tests do.
func (c *container) follow(ctx context.Context, primary, port int) error {
	prepareTestcontainers()
	shares, err := c.fairShare(ctx)
	if err != nil {
		return err
	}
	own := []string{"port=" + strconv.Itoa(port), "listen_addresses=127.0.0.1", "unix_socket_directories="}
	script := followScript + "\nexec postgres -c '" + strings.Join(append(settings(), own...), "' -c '") + "'"
	_, err = testcontainers.Run(ctx, c.Image,
		testcontainers.WithName(c.Name),
		testcontainers.WithLabels(map[string]string{"reconciler.pgtest": "true"}),
		testcontainers.WithEntrypoint(append([]string{"/bin/bash", "-c", script, "standby"}, backupArgs(primary)...)...),
		testcontainers.WithCmd(),
		testcontainers.WithConfigModifier(func(config *containertypes.Config) { config.User = superuser }),
		testcontainers.WithHostConfigModifier(func(host *containertypes.HostConfig) {
			host.ShmSize, host.NetworkMode = shmBytes, "host"
			shares(host)
		}),
		testcontainers.WithNoStart(),
	)
	return err
}
