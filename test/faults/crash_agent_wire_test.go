package faults_test

import (
	"bufio"
	"bytes"
	"io"
	"maps"
	"net/http"
	"regexp"
	"sync"
	"syscall"
)

// agentWire stands between an agent and its server. It makes a step of each frame and each report before it passes it on, and of the
// answer to a report, and kills the agent at one of them.
type agentWire struct {
	server string // URL

	mu    sync.Mutex // guards what follows
	step  *regexp.Regexp
	mute  bool // reports are lost
	agent *crashProcess
}

// of sets which process it is the wire of.
func (w *agentWire) of(p *crashProcess) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.agent = p
}

// await has the agent killed at the first step that matches.
func (w *agentWire) await(step *regexp.Regexp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step = step
}

// lose sets whether reports are lost.
func (w *agentWire) lose(reports bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mute = reports
}

func (w *agentWire) loses() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mute
}

// kill kills the agent.
func (w *agentWire) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.agent.signal(syscall.SIGKILL)
}

// reach does not return from the step at which the agent dies: nothing is passed on.
func (w *agentWire) reach(step string) {
	w.mu.Lock()
	dies := w.step != nil && w.step.MatchString(step)
	if dies {
		w.step = nil
	}
	w.mu.Unlock()
	if dies {
		w.kill()
		panic(http.ErrAbortHandler)
	}
}

func (w *agentWire) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.Method == http.MethodPost {
		w.reach("report " + string(body))
		if w.loses() {
			panic(http.ErrAbortHandler)
		}
	}
	onward, err := http.NewRequestWithContext(r.Context(), r.Method, w.server+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		http.Error(to, err.Error(), http.StatusBadGateway)
		return
	}
	onward.Header = r.Header.Clone()
	onward.Header.Set("Accept-Encoding", "identity")
	answer, err := http.DefaultTransport.RoundTrip(onward)
	if err != nil {
		http.Error(to, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	if r.Method == http.MethodPost && answer.StatusCode == http.StatusOK {
		w.reach("reported " + string(body))
	}
	maps.Copy(to.Header(), answer.Header)
	to.WriteHeader(answer.StatusCode)
	for lines := bufio.NewReader(answer.Body); err == nil; {
		var line []byte
		line, err = lines.ReadBytes('\n')
		w.reach("frame " + string(line))
		if _, failed := to.Write(line); failed != nil {
			return
		}
		_ = http.NewResponseController(to).Flush() // the next write fails
	}
}
