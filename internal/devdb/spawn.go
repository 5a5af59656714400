package devdb

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// spawn starts a server that ends with this process. The channel is closed when it has ended.
func spawn(l *pgserver.Local, settings []string) (<-chan struct{}, error) {
	args := []string{"-D", l.Data}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	log, err := os.OpenFile(l.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the server's log: %w", err)
	}
	defer log.Close()
	cmd, err := pgserver.Command(context.Background(), "/", filepath.Join(l.Bin, "postgres"), args...) // Stop ends it
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	dieWithParent(cmd)
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		// One thread starts it and lives as long as it does: when a thread ends, the kernel takes it for the parent's death.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // The log has the reason.
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	l.Child, l.Ended = cmd.Process.Pid, ended
	return ended, nil
}

// watch returns a channel that is closed when a container has ended. It is, at the latest, when Stop removes it.
func watch(c *pgserver.Container) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = pgserver.Docker(context.Background(), "wait", c.Name) // However it ends, the container is gone.
	}()
	return ended
}
