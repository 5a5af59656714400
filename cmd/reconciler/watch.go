package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/cli"
)

const watchServerDefault = "http://" + streamsListen

func (a *app) watchCommand() *cobra.Command {
	var server, tokenFile string
	var opts client.WatchOptions
	cmd := &cobra.Command{
		Use:   "watch TARGET",
		Short: "Follow the objects of a stream",
		Long: "Prints the objects of a target with `driver: stream`, then every change, until Ctrl-C. It asks a server over HTTP, and\n" +
			"needs neither the database nor a config. A connection that is lost is made again, and the stream resumed.\n" +
			"With -o json it prints one frame on each line; see https://github.com/pgreconciler/reconciler/blob/main/docs/streams.md.",
		Args: a.args(1, 1),
	}
	cmd.Flags().StringVar(&server, "server", watchServerDefault, "`URL` of a process with streams.listen")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "send the token in this `FILE`")
	cmd.Flags().StringArrayVar(&opts.Resources, "resource", nil, "follow this `RESOURCE` only; may be given several times")
	cmd.Flags().StringVar(&opts.Prefix, "prefix", "", "follow keys with this `PREFIX` only; needs exactly one --resource")
	cmd.Flags().StringVar(&opts.Since, "since", "", "begin after this `BOOKMARK` instead of with a snapshot")
	cmd.Flags().BoolVar(&opts.Once, "once", false, "end after the snapshot, or after what has changed since the bookmark")
	cmd.PreRun = func(*cobra.Command, []string) {
		if opts.Prefix != "" && len(opts.Resources) != 1 {
			a.problems.Add("--prefix needs exactly one --resource")
		}
		if slices.Contains(opts.Resources, "") {
			a.problems.Add("--resource is empty")
		}
	}
	cmd.RunE = a.plain(func(cmd *cobra.Command, args []string) error {
		var with []client.Option
		if tokenFile != "" {
			with = append(with, client.TokenFile(tokenFile))
		}
		c, err := client.New(server, with...)
		if err != nil {
			return cli.Usage(err.Error(), helpHint(cmd))
		}
		return a.watch(cmd.Context(), c, args[0], opts)
	})
	return cmd
}

// watch prints frames until ctx ends; that is no error.
func (a *app) watch(ctx context.Context, c *client.Client, target string, opts client.WatchOptions) error {
	for frame, err := range c.Watch(ctx, target, opts) {
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, client.ErrUnauthorized):
			return &cli.Failure{Code: cli.ExitDiffers, Text: err.Error(), Hint: "give --token-file with the file of a token in streams.tokens", Err: err}
		case err != nil:
			return &cli.Failure{Code: cli.ExitDiffers, Text: err.Error(), Err: err}
		}
		if err := a.printFrame(frame); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printFrame(f client.Frame) error {
	if a.printer().JSON() {
		text, err := json.Marshal(f)
		if err == nil {
			_, err = a.stdout.Write(append(text, '\n'))
		}
		if err != nil {
			return fmt.Errorf("print a frame: %w", err)
		}
		return nil
	}
	switch f.Type {
	case client.Upsert:
		return a.printer().Line(fmt.Sprintf("%s %s/%s %s", f.Type, f.Resource, f.Key, f.Spec))
	case client.Delete:
		return a.printer().Line(fmt.Sprintf("%s %s/%s", f.Type, f.Resource, f.Key))
	case client.Keep:
		return a.printer().Line(fmt.Sprintf("%s %s/%s: %s", f.Type, f.Resource, f.Key, f.Reason))
	case client.EndOfSnapshot:
		return a.printer().Line(string(f.Type))
	case client.Reset, client.Waiting:
		a.note("%s: %s", f.Type, f.Reason)
	case client.Checkpoint: // for programs
	}
	return nil
}
