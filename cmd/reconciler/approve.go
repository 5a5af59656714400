package main

import "github.com/spf13/cobra"

func (a *app) approveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "approve TARGET",
		Short: "Let the deletes pass that the guard holds",
		Long: "Lets the deletes pass that the guard of a target holds now; later ones are counted anew.\n" +
			"`reconciler status TARGET --held` lists them.",
		Args: a.args(1, 1),
		RunE: a.order("SELECT reconciler.approve($1)", onlyTarget),
	}
}
