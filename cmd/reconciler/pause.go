package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
)

func (a *app) pauseCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "pause TARGET",
		Short: "Stop all calls on a target",
		Long:  "Stops all calls on a target, within a second. What changes meanwhile is noticed, and applied after resume.",
		Args:  a.args(1, 1),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for whoever looks at the status")
	cmd.RunE = a.order("SELECT reconciler.pause($1, $2)", func(args []string) []any {
		return []any{args[0], cli.Optional(reason)}
	})
	return cmd
}

// order makes the RunE of a command that tells the processes something through one function.
func (a *app) order(sql string, values func(args []string) []any) func(*cobra.Command, []string) error {
	return a.onDatabase(cli.SessionOptions{Need: cli.Operator}, func(ctx context.Context, s *cli.Session, args []string) error {
		text, err := s.Text(ctx, sql, values(args)...)
		if err != nil {
			return err
		}
		return a.printer().Message(text)
	})
}

// onlyTarget is the values of an order that takes a target and nothing else.
func onlyTarget(args []string) []any { return []any{args[0]} }
