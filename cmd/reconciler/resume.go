package main

import "github.com/spf13/cobra"

func (a *app) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "resume TARGET",
		Short: "Let a paused target go on",
		Args:  a.args(1, 1),
		RunE:  a.order("SELECT reconciler.resume($1)", onlyTarget),
	}
}
