package main

import "github.com/spf13/cobra"

func (a *app) releaseCommand() *cobra.Command {
	var objects string
	cmd := &cobra.Command{
		Use:   "release TARGET",
		Short: "Give a target up",
		Long: "Gives a target up. --objects keep forgets one that is in no running process's config, and leaves its objects\n" +
			"there; --objects delete has the objects of one that is still in a config deleted.",
		Args: a.args(1, 1),
	}
	a.problems.Choice(cmd.Flags(), &objects, "objects", "", []string{"keep", "delete"}, "what becomes of its objects")
	cmd.RunE = a.order("SELECT reconciler.release($1, $2)", func(args []string) []any { return []any{args[0], objects} })
	return cmd
}
