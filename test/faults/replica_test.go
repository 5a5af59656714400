package faults_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// replica is one of the places where a process of the product runs: one process at a time, with a proxy of its own.
type replica struct {
	world  *world
	name   string // r0, r1, ...
	proxy  *proxy
	config string
	args   []string // before those that name the config
	binary string
	shift  time.Duration // of its clock
	down   bool          // it is to stay dead for now; only the injector asks

	mu      sync.Mutex // guards what follows
	current *process   // nil: none has been started yet
	all     []*process
}

// process is a run of `reconciler run`.
type process struct {
	cmd    *exec.Cmd
	pid    int
	began  time.Time
	exited chan struct{} // closed when it has ended and all of its log is read

	mu      sync.Mutex // guards what follows
	started bool       // it has said so
	asked   bool       // it was told to end
	armed   string     // where the environment lets it die; empty: nowhere
	address string     // of its metrics
	streams string     // where it serves streams
	lines   []string
}

// start begins to run a process. It is ill until it says that it has started.
// armed, if it is not empty, says where it is to die; see internal/crash.
func (r *replica) start(armed string) {
	w := r.world
	args := slices.Concat([]string{r.binary}, r.args, []string{"-c", r.config})
	if w.disk != nil {
		args = slices.Concat(w.disk.Enter, args)
	}
	cmd := w.command(context.WithoutCancel(w.t.Context()), args...)
	cmd.Env = append(cmd.Env, "WORLD_REPLICA="+r.name)
	if r.shift != 0 {
		cmd.Env = append(cmd.Env, shiftVariable+"="+strconv.Itoa(int(r.shift/time.Second)))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // however the tester ends
	if armed != "" {
		cmd.Env = append(cmd.Env, "RECONCILER_CRASH="+armed)
	}
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	p := &process{cmd: cmd, began: time.Now(), exited: make(chan struct{}), armed: armed}
	if err := cmd.Start(); err != nil {
		w.violate("tester", "start %s: %v", r.name, err)
		return
	}
	p.pid = cmd.Process.Pid
	r.mu.Lock()
	r.current = p
	r.all = append(r.all, p)
	r.mu.Unlock()
	w.note("%s is process %d %s", r.name, p.pid, armed)
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		r.read(p, read)
	}()
	go func() {
		_ = cmd.Wait() // ProcessState tells how it ended
		_ = write.Close()
		<-logged
		r.ended(p)
		close(p.exited)
	}()
}

func (r *replica) read(p *process, from io.Reader) {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var line struct{ Msg, Key, Address string }
		_ = json.Unmarshal(scanner.Bytes(), &line) // what is no JSON has no message
		p.mu.Lock()
		p.lines = append(p.lines, scanner.Text())
		if line.Msg == "listening" && line.Key == "listen" {
			p.address = line.Address
		}
		if line.Msg == "listening" && line.Key == "streams.listen" {
			p.streams = line.Address
		}
		first := line.Msg == "started" && !p.started
		p.started = p.started || first
		p.mu.Unlock()
		if first {
			r.world.timeline.well(r.name)
		}
		if slices.Contains([]string{"run_panicked", "driver_panicked"}, line.Msg) {
			r.world.violate("panic", "%s: %s", r.name, scanner.Text())
		}
	}
	_, _ = io.Copy(io.Discard, from) // a line that is too long must not block the process
}

// ended looks at how a process ended. By itself it may end only where it could not start: without a database, or when its
// sessions ended before it was ready.
func (r *replica) ended(p *process) {
	p.mu.Lock()
	started, asked, lines := p.started, p.asked, p.lines
	p.mu.Unlock()
	if started {
		r.world.timeline.ill(r.name)
	}
	code := p.cmd.ProcessState.ExitCode()
	r.world.note("%s (process %d) ended: %s", r.name, p.pid, p.cmd.ProcessState)
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && !asked && p.armed != "" && status.Signal() == syscall.SIGKILL {
		r.world.count("died at a crash point", 1)
		r.world.count("died at "+strings.Split(p.armed, ":")[0], 1)
		return
	}
	if r.world.adopts() && p.refused() {
		return
	}
	if !asked && (started || code != exitUnreachable && code != exitFailed) {
		r.world.violate("process", "%s (process %d) ended by itself: %s\n%s", r.name, p.pid, p.cmd.ProcessState, strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
}

const (
	exitFailed      = 1
	exitUnreachable = 3
)

func (r *replica) process() *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// wasKilled says whether it ended by SIGKILL.
func (p *process) wasKilled() bool {
	if p.alive() {
		return false
	}
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// alive says whether there is a process that has not ended.
// hasStarted says whether the process has said that it is ready to work.
func (p *process) hasStarted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.started
}

func (p *process) alive() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// signal sends a signal; those that end a process are remembered. It may have ended by itself.
func (p *process) signal(s syscall.Signal) {
	if s == syscall.SIGKILL || s == syscall.SIGTERM {
		p.mu.Lock()
		p.asked = true
		p.mu.Unlock()
	}
	_ = p.cmd.Process.Signal(s)
}

// ends waits for the end of a process.
func (p *process) ends(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		return false
	}
}

// logs returns what the processes of a replica said.
func (r *replica) logs() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, p := range r.all {
		p.mu.Lock()
		fmt.Fprintf(&b, "--- log of %s, process %d\n%s\n", r.name, p.pid, strings.Join(p.lines, "\n"))
		p.mu.Unlock()
	}
	return b.String()
}

func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = w.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "TMPDIR=" + w.temp}
	return cmd
}

// metrics asks a process for its series without labels.
func (p *process) metrics(ctx context.Context) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p.mu.Lock()
	address := p.address
	p.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	have := map[string]int{}
	for scanner := bufio.NewScanner(answer.Body); scanner.Scan(); {
		var name string
		var value float64
		if n, _ := fmt.Sscan(scanner.Text(), &name, &value); n == 2 { // what has labels does not matter here
			have[name] = int(value)
		}
	}
	return have, nil
}
