package faults_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/client"
)

const (
	// clientVariable has this binary run a client: a clientPlan in JSON.
	clientVariable = "RECONCILER_TEST_CLIENT"
	// farSide is the directory of a client that has a file for each object, and clientOverlap a file that says that two handlers ran for
	// one key at once.
	farSide       = "far-side"
	clientOverlap = "overlap"
	// stepStore is a write to the store.
	stepStore = "store"
)

// clientPlan is what a client is to do.
type clientPlan struct {
	Server, Target, Dir string
	Store, Existing     bool
	Step                string // at which it kills itself: a regular expression; "": at none
	Visit               int    // which of the steps that match
}

// clientProcess is a process that follows a target, and makes a directory equal to its objects.
type clientProcess struct {
	clientPlan

	apps  *client.Objects[json.RawMessage]
	step  *regexp.Regexp
	mu    sync.Mutex // guards what follows
	steps int        // that have matched
	last  string     // of the steps that deleted something
}

// reach is called at each step, and does not return from that at which the process is to die.
func (c *clientProcess) reach(step string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case step == stepStore:
		step += " after " + c.last
	case strings.HasPrefix(step, "removed "):
		c.last = step
	}
	if c.Step == "" || !c.step.MatchString(step) {
		return
	}
	if c.steps++; c.steps == c.Visit {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// runClient is the main function of the process.
func runClient(text string) error {
	c := &clientProcess{}
	if err := json.Unmarshal([]byte(text), &c.clientPlan); err != nil {
		return err
	}
	c.step = regexp.MustCompile("(?s)" + c.Step)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	server, err := client.New(c.Server, client.HTTPClient(&http.Client{Transport: c}), client.Logger(log))
	if err != nil {
		return err
	}
	opts := client.InformerOptions{Resources: []string{"app"}}
	if c.Store {
		path := filepath.Join(c.Dir, "store")
		if opts.Store, err = client.OpenStore(path); err != nil {
			return err
		}
		defer func() { _ = opts.Store.Close() }()
		if err := c.watchStore(path); err != nil {
			return err
		}
	}
	informer := client.NewInformer(server, c.Target, opts)
	c.apps = client.For[json.RawMessage](informer, "app")
	var more []client.ControllerOption
	if c.Existing {
		more = append(more, client.Existing(c.existing))
	}
	controller := client.NewController(informer, "app", c.handle, more...)
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return informer.Run(ctx) })
	running.Go(func() error { return controller.Run(ctx) })
	return running.Wait()
}

// handle makes the file of an object equal to it.
func (c *clientProcess) handle(_ context.Context, key string) (client.Result, error) {
	lock, err := os.OpenFile(filepath.Join(c.Dir, "lock-"+key), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return client.Result{}, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil { // which ends with the process
		return client.Result{}, os.WriteFile(filepath.Join(c.Dir, clientOverlap), []byte(key), 0o600)
	}
	path := filepath.Join(c.Dir, farSide, key)
	spec, wanted, err := c.apps.Get(key)
	switch {
	case err != nil:
		return client.Result{}, err
	case wanted:
		c.reach("apply " + key)
		err = os.WriteFile(path, spec, 0o600)
		c.reach("applied " + key)
		return client.Applied(), err
	}
	c.reach("remove " + key)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return client.Result{}, err
	}
	c.reach("removed " + key)
	return client.Absent(), nil
}

func (c *clientProcess) existing(context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		entries, err := os.ReadDir(filepath.Join(c.Dir, farSide))
		if err != nil {
			yield("", err)
		}
		for _, entry := range entries {
			if !yield(entry.Name(), nil) {
				return
			}
		}
	}
}

// RoundTrip makes steps of what is read and reported.
func (c *clientProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost {
		response, err := http.DefaultTransport.RoundTrip(r)
		if err == nil {
			response.Body = &frames{ReadCloser: response.Body, client: c, lines: bufio.NewReader(response.Body)}
		}
		return response, err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	c.reach("report " + string(body))
	response, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusOK {
		c.reach("reported " + string(body))
	}
	return response, err
}

// frames gives its reader one frame after the other.
type frames struct {
	io.ReadCloser

	client *clientProcess
	lines  *bufio.Reader
	frame  []byte
	left   []byte // of the frame
}

func (f *frames) Read(b []byte) (int, error) {
	if len(f.left) == 0 {
		if f.frame != nil {
			f.client.reach("taken " + string(f.frame))
		}
		frame, err := f.lines.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		f.client.reach("read " + string(frame))
		f.frame, f.left = frame, frame
	}
	n := copy(b, f.left)
	f.left = f.left[n:]
	return n, nil
}

// watchStore makes steps of what is written to a file. A transaction of a store writes several times.
func (c *clientProcess) watchStore(path string) error {
	fd, err := syscall.InotifyInit()
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	if _, err := syscall.InotifyAddWatch(fd, path, syscall.IN_MODIFY); err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	go func() {
		var event [syscall.SizeofInotifyEvent]byte // that of a file has no name
		for {
			if _, err := syscall.Read(fd, event[:]); err == nil {
				c.reach(stepStore)
			}
		}
	}()
	return nil
}
