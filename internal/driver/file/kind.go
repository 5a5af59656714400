package file

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
	"github.com/pgreconciler/reconciler/internal/driver/process"
)

const (
	modeDefault           = "0644"
	reloadDebounceDefault = 100 * time.Millisecond
	reloadDebounceMax     = time.Minute
	reloadTimeoutDefault  = 10 * time.Second
	reloadTimeoutMin      = 100 * time.Millisecond
	reloadTimeoutMax      = 10 * time.Minute
)

// Kind is the driver `file`.
func Kind() driver.Kind { return driver.Kind{Name: "file", Open: open} }

func open(target string, opts driver.Options, env driver.Env) (driver.Driver, error) {
	r := options.New(opts)
	d := &directory{
		create: r.Bool("create", true),
		fsync:  r.Bool("fsync", true),
		mode:   readMode(r),
	}
	d.path = readDir(r, d.create)
	d.claim.target = target
	command := readReload(r, env)
	if err := r.Err(); err != nil {
		return nil, err
	}
	if command != nil {
		owed := filepath.Join(d.path, reloadOwedName)
		d.reload = startReloader(command.run, command.debounce, owed, env.Log().With("target", target, "driver", "file"))
	}
	return d, nil
}

// readDir returns the directory's absolute path: this process may change its working directory later, and
// messages shall say where a file really is.
func readDir(r *options.Reader, create bool) string {
	path := r.Required("dir")
	if path == "" {
		return ""
	}
	path, err := filepath.Abs(path)
	if err != nil {
		r.Problemf("dir", "cannot be made absolute: %s", err)
		return ""
	}
	info, err := os.Stat(path)
	switch parent := filepath.Dir(path); {
	case err == nil && !info.IsDir():
		r.Problemf("dir", "%s is not a directory", path)
	case err == nil:
	case !os.IsNotExist(err):
		r.Problemf("dir", "%s cannot be used: %s", path, reason(err))
	case !create:
		r.Problemf("dir", "there is no directory %s: create it, or set options.create to true", path)
	case !isDir(parent):
		r.Problemf("dir", "there is no directory %s to create %s in: create it first", parent, filepath.Base(path))
	}
	return path
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

var octal = regexp.MustCompile(`^0?[0-7]{3}$`)

func readMode(r *options.Reader) fs.FileMode {
	text := r.String("mode", modeDefault)
	if !octal.MatchString(text) {
		r.Problemf("mode", `must be a string of three octal digits, such as "0640"`)
		return 0
	}
	bits, _ := strconv.ParseUint(text, 8, 32)
	mode := fs.FileMode(bits)
	if mode&0o600 != 0o600 {
		r.Problemf("mode", `must let the owner read and write, such as "0600"`)
	}
	return mode
}

func readReload(r *options.Reader, env driver.Env) *reloadCommand {
	group, ok := r.Group("reload")
	if !ok {
		return nil
	}
	if !group.Has("command") {
		group.Problemf("command", "is required")
	}
	c := &reloadCommand{
		debounce: group.Duration("debounce", reloadDebounceDefault, 0, reloadDebounceMax),
		timeout:  group.Duration("timeout", reloadTimeoutDefault, reloadTimeoutMin, reloadTimeoutMax),
	}
	c.command.Args = process.ReadArgs(group, "command")
	c.command.Dir, c.command.Env, c.scrubber = process.ReadSurroundings(group, env.Getenv)
	return c
}
