package main

import "github.com/spf13/cobra"

func (a *app) acknowledgeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "acknowledge TARGET",
		Short: "Say that a target was compared with the rows after a restore",
		Long: "Says that somebody has compared a target that cannot list with the rows, after a restore or a failover that lost\n" +
			"commits: `reconciler doctor` names it no longer.",
		Args: a.args(1, 1),
		RunE: a.order("SELECT reconciler.acknowledge($1)", onlyTarget),
	}
}
