package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// answerTimeout bounds a report.
const answerTimeout = 30 * time.Second

// Report is what a client has seen of the objects of a target.
type Report struct {
	Complete bool // Observations are of every object that the client has
	// Version is that of an EndOfSnapshot or a Checkpoint up to which the client has followed the stream. With it a complete report also
	// confirms deletes of what it does not name. 0: not known.
	Version      int64
	Observations []Observation
}

// Observation is what a client has made of one version of an object.
type Observation struct {
	Resource string `json:"resource"`
	Key      string `json:"key"`
	Version  int64  `json:"version"` // of the object; for an absent one, of its delete or of the end of a snapshot without it
	State    State  `json:"state"`
	Message  string `json:"message,omitempty"`
	Healthy  *bool  `json:"healthy,omitempty"` // nil: not known
	// Status is a JSON object with what the far side shows of the object; nil: none.
	Status json.RawMessage `json:"status,omitempty"`
}

// Report sends observations of a target in one request. An answer with another status than 200 is a *StatusError; ErrForbidden holds if
// the token may not report. Reports of one Client follow each other. A Controller reports by itself.
func (c *Client) Report(ctx context.Context, target string, r Report) error {
	_, err := c.report(ctx, target, 0, func() (Report, error) { return r, nil })
	return err
}

// report sends what a function returns, as the attempt before if that had the number seq and no other report came in between. It returns
// the number. The function is called when no other report is under way: the next one is newer than what it returns.
func (c *Client) report(ctx context.Context, target string, seq uint64, what func() (Report, error)) (uint64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("the server has not answered a report within %s", answerTimeout))
	defer cancel()
	select {
	case c.reporting <- struct{}{}:
	case <-ctx.Done():
		return seq, context.Cause(ctx)
	}
	defer func() { <-c.reporting }()
	r, err := what()
	if err != nil {
		return seq, err
	}
	if seq == 0 || seq != c.seq {
		c.seq++
		seq = c.seq
	}
	body, err := c.encode(seq, r)
	if err != nil {
		return seq, err
	}
	resp, err := c.do(ctx, http.MethodPost, bytes.NewReader(body), nil, target, "observations") //nolint:bodyclose // drain does
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return seq, cause
		}
		return seq, err
	}
	defer drain(resp.Body)
	var answer struct {
		Accepted int `json:"accepted"`
		Ignored  int `json:"ignored"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err == nil && answer.Accepted == 0 && answer.Ignored > 0 {
		c.log.Warn("report_ignored", "target", target, "observations", answer.Ignored,
			"cause", "they are old, or another client reports on the target")
	}
	return seq, nil
}

// validate returns what is wrong with an observation.
func (o Observation) validate() error {
	switch {
	case o.Resource == "": // an empty key is one
		return errors.New("the resource must be set")
	case o.Version < 1:
		return fmt.Errorf("%s %q: the version is %d, and must be the one of a frame", o.Resource, o.Key, o.Version)
	}
	switch o.State {
	case StateApplied, StateProgressing, StateFailed, StateAbsent:
		return nil
	}
	return fmt.Errorf("%s %q: the state is %q, and must be applied, progressing, failed or absent", o.Resource, o.Key, o.State)
}

// encode returns a report as lines of JSON. The last one shows that none is missing.
func (c *Client) encode(seq uint64, r Report) ([]byte, error) {
	for n, o := range r.Observations {
		if err := o.validate(); err != nil {
			return nil, fmt.Errorf("observation %d: %w", n, err)
		}
	}
	var info *Info
	if c.info != nil {
		now := c.info()
		now.Name, now.Version, now.Driver = cut(now.Name, 128), cut(now.Version, 64), cut(now.Driver, 64)
		now.Trouble = cut(now.Trouble, 1000)
		info = &now
	}
	var body bytes.Buffer
	lines := json.NewEncoder(&body)
	lines.SetEscapeHTML(false)
	if err := lines.Encode(struct {
		Session  string `json:"session"`
		Seq      uint64 `json:"seq"`
		Complete bool   `json:"complete"`
		Version  int64  `json:"version,omitempty"`
		Client   *Info  `json:"client,omitempty"`
	}{c.session, seq, r.Complete, r.Version, info}); err != nil {
		return nil, err
	}
	for _, o := range r.Observations {
		if err := lines.Encode(o); err != nil {
			return nil, fmt.Errorf("encode the observation of %s %q: %w", o.Resource, o.Key, err)
		}
	}
	body.WriteString(`{"end":true}` + "\n")
	return body.Bytes(), nil
}

// newSession returns a number that tells the reports of one Client from those of others.
func newSession() string {
	var session [16]byte
	_, _ = rand.Read(session[:]) // which never fails
	return hex.EncodeToString(session[:])
}
