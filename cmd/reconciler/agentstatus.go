package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/agent"
	"github.com/pgreconciler/reconciler/internal/cli"
)

const (
	agentAddressDefault = "127.0.0.1:7434"
	agentAnswerTimeout  = 10 * time.Second
	agentAnswerMost     = 1 << 20
)

func (a *app) agentStatusCommand() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what an agent is doing",
		Long: "Shows one row for each target of an agent, and below what is in the way. Without --address it asks the agent of this host.\n" +
			"Exit codes: 0 every object is as its stream wants it; 1 something is not; 3 the agent does not answer.",
		Args: a.args(0, 0),
	}
	agentAddress(cmd, &address)
	cmd.RunE = a.plain(func(cmd *cobra.Command, _ []string) error {
		var status agent.Status
		if err := askAgent(cmd.Context(), http.MethodGet, address, "/status", &status); err != nil {
			return err
		}
		return a.printAgent(status)
	})
	return cmd
}

func (a *app) agentApproveCommand() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "approve TARGET",
		Short: "Let the deletes pass that an agent's guard holds",
		Long: "Lets the deletes pass that the guard of an agent holds now for a target; later ones are counted anew. Run it on the agent's\n" +
			"host. `SELECT reconciler.approve('TARGET')` in the database does the same as soon as the agent reaches the server.",
		Args: a.args(1, 1),
	}
	agentAddress(cmd, &address)
	cmd.RunE = a.plain(func(cmd *cobra.Command, args []string) error {
		var answer agent.Approved
		path := "/approve?target=" + url.QueryEscape(args[0])
		if err := askAgent(cmd.Context(), http.MethodPost, address, path, &answer); err != nil {
			return err
		}
		if answer.Approved == 0 {
			return a.printer().Message("the agent's guard holds nothing of " + answer.Target)
		}
		return a.printer().Message(fmt.Sprintf("%s of %s approved", counted(answer.Approved, "delete"), answer.Target))
	})
	return cmd
}

func agentAddress(cmd *cobra.Command, address *string) {
	cmd.Flags().StringVar(address, "address", agentAddressDefault, "`HOST:PORT` that the agent listens on")
}

// askAgent makes a request to an agent and decodes its answer.
func askAgent(ctx context.Context, method, address, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, agentAnswerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, http.NoBody)
	if err != nil || req.URL.Port() == "" {
		return cli.Usage(fmt.Sprintf("--address must be host:port such as %s, not %q", agentAddressDefault, address), "")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return &cli.Failure{
			Code: cli.ExitDatabase, Text: fmt.Sprintf("the agent at %s does not answer: %v", address, reasonOf(err)),
			Hint: "--address names the `listen` of another agent", Err: err,
		}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, agentAnswerMost))
	switch {
	case err == nil && resp.StatusCode != http.StatusOK:
		return &cli.Failure{Code: cli.ExitDiffers, Text: strings.TrimSpace(string(body))}
	case err == nil:
		err = json.Unmarshal(body, answer)
	}
	if err != nil {
		return &cli.Failure{Code: cli.ExitDatabase, Text: fmt.Sprintf("%s answers, but not as an agent does", address), Err: err}
	}
	return nil
}

// reasonOf is an error of a request without the request.
func reasonOf(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err
	}
	return err
}

func (a *app) printAgent(status agent.Status) error {
	code := cli.ExitOK
	var rows [][]string
	var below []string
	for _, t := range status.Targets {
		if t.State != agent.StateOK {
			code = cli.ExitDiffers
		}
		rows = append(rows, []string{
			t.Target, string(t.State), t.Driver, strconv.Itoa(t.Objects), strconv.Itoa(t.Pending), strconv.Itoa(t.Failing), strconv.Itoa(t.Held),
			strconv.FormatInt(t.Revision, 10), timeOrDash(t.LastSync),
		})
		if t.Server != "" {
			below = append(below, fmt.Sprintf("%s: server: %s", t.Target, t.Server))
		}
		if t.Trouble != "" {
			below = append(below, fmt.Sprintf("%s: %s", t.Target, t.Trouble))
		}
		if t.Held > 0 {
			below = append(below, fmt.Sprintf("%s: `reconciler agent approve %s` lets the held deletes pass", t.Target, t.Target))
		}
	}
	p := a.printer()
	if p.JSON() {
		if err := p.Value(status); err != nil {
			return err
		}
		return exitWith(code)
	}
	titles := []string{"TARGET", "STATE", "DRIVER", "OBJECTS", "PENDING", "FAILING", "HELD", "REVISION", "LAST SYNC"}
	if err := p.Grid(titles, rows); err != nil {
		return err
	}
	if len(below) > 0 {
		below = append([]string{""}, below...)
	}
	for _, line := range below {
		if err := p.Line(line); err != nil {
			return err
		}
	}
	return exitWith(code)
}

func timeOrDash(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return cli.FormatTime(at.Format(time.RFC3339Nano))
}

func exitWith(code int) error {
	if code == cli.ExitOK {
		return nil
	}
	return cli.Silent(code)
}
