package webhook

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
)

// healthEndpoint is a URL that says whether what a hook applied is healthy.
type healthEndpoint struct {
	of *hook
	at address
}

// Health asks it: a status of 2xx means healthy. Otherwise the first line of the answer is the reason.
func (e *healthEndpoint) Health(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.at.path, nil)
	if err != nil {
		return errors.New("options.health_url does not make a request") // the error repeats the URL
	}
	e.of.introduce(req)
	req.Header.Set("Cache-Control", "no-cache") // what somebody in between remembers may be older than what was applied
	resp, err := e.of.client.Do(req)
	if err != nil {
		return errors.New(e.of.scrubber.Text(e.of.silence(ctx, req.Method, e.at, err).Error()))
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, bodyReadMax))
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return nil
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(answer), []byte("\n"))
	return e.of.refusal(req.Method, e.at, resp, line)
}
