package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
)

func (a *app) untrackCommand() *cobra.Command {
	var objects string
	cmd := &cobra.Command{
		Use:   "untrack RESOURCE",
		Short: "Undo track",
		Long:  "Undoes track. --release keep leaves the resource's objects in their targets, --release delete deletes them there.",
		Args:  a.args(1, 1),
	}
	a.problems.Choice(cmd.Flags(), &objects, "release", "", []string{"keep", "delete"}, "what becomes of its objects")
	cmd.RunE = a.onDatabase(definerSession(), func(ctx context.Context, s *cli.Session, args []string) error {
		text, err := s.Text(ctx, "SELECT reconciler.untrack($1, $2)", args[0], objects)
		if err != nil {
			return err
		}
		return a.printer().Message(text)
	})
	return cmd
}
