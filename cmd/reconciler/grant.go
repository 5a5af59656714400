package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
)

func (a *app) grantCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "grant ROLE viewer|operator|runtime|definer",
		Short: "Give a role its rights",
		Long: "Gives a role of the database the rights of a kind: viewer (reads everything but specs), operator (may also\n" +
			"pause, resume, retry, sync, approve, release), runtime (the daemon) or definer (may track). It is for the owner\n" +
			"of the schema. Calling it again completes the rights, after an upgrade or a new resource.",
		Args: a.args(2, 2),
		RunE: a.onDatabase(cli.SessionOptions{Need: cli.Owner}, func(ctx context.Context, s *cli.Session, args []string) error {
			text, err := s.Text(ctx, "SELECT reconciler.grant($1, $2)", args[0], args[1])
			if err != nil {
				return err
			}
			return a.printer().Message(text)
		}),
	}
}
