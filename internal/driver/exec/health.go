package exec

import (
	"bytes"
	"context"
	"encoding/json"
)

// healthProgram is the program that says whether what another one applied is healthy.
type healthProgram struct {
	of   *program
	args []string
}

// healthMessage is what it reads.
type healthMessage struct {
	Action string `json:"action"`
	Target string `json:"target"`
}

// Health runs it: exit status 0 means healthy. Of what it wrote to standard error the last line is the reason.
func (p *healthProgram) Health(ctx context.Context) error {
	message, err := json.Marshal(healthMessage{Action: "health", Target: p.of.target})
	if err != nil {
		return err
	}
	result, err := p.of.command(p.args, message).Run(ctx)
	if err == nil && result.Code == 0 {
		return nil
	}
	// Scrubbed before it is cut: a secret may have lines.
	result.Stderr = lastLine([]byte(p.of.scrubber.Text(string(result.Stderr))))
	return p.of.said(p.args, result, err)
}

func lastLine(text []byte) []byte {
	text = bytes.TrimSpace(text)
	return text[bytes.LastIndexByte(text, '\n')+1:]
}
