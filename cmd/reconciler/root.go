package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgreconciler/reconciler/internal/cli"
)

// Groups of commands in the help.
const (
	groupRun   = "run"
	groupLook  = "look"
	groupSteer = "steer"
	groupSetUp = "setup"
)

const rootLong = `reconciler keeps the outside world equal to rows in PostgreSQL.

Rows of tracked tables become objects in targets; see https://github.com/pgreconciler/reconciler.
Everything but run, agent and dev works while no process runs.

Exit codes: 0 ok; 1 not converged, something differs, or the command failed; 2 wrong arguments or
configuration; 3 the database is out of reach, or its schema or the role's rights do not fit; 4 timeout.`

// root builds the tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "reconciler",
		Short:         "Keeps the outside world equal to rows in PostgreSQL",
		Long:          rootLong,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          a.subcommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVarP(&a.configFile, "config", "c", "",
		"YAML or JSON `FILE` (default: $RECONCILER_CONFIG, else ./reconciler.yaml if it exists)")
	a.problems.Choice(root.PersistentFlags(), &a.output, "output", "o", []string{"table", "json"}, "form of the result")
	root.SetFlagErrorFunc(flagError)
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run:"},
		&cobra.Group{ID: groupLook, Title: "Look:"},
		&cobra.Group{ID: groupSteer, Title: "Steer:"},
		&cobra.Group{ID: groupSetUp, Title: "Set up:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	add(groupRun, a.runCommand(), a.agentCommand(), a.devCommand())
	add(groupLook, a.statusCommand(), a.topCommand(), a.waitCommand(), a.watchCommand(), a.explainCommand(), a.diffCommand(), a.doctorCommand(), a.benchCommand())
	add(groupSteer, a.applyCommand(), a.syncCommand(), a.retryCommand(), a.pauseCommand(), a.resumeCommand(), a.approveCommand(), a.acknowledgeCommand(), a.releaseCommand())
	add(groupSetUp, a.migrateCommand(), a.trackCommand(), a.untrackCommand(), a.grantCommand(), a.kubernetesCommand(), a.configCommand(false))
	root.AddCommand(a.versionCommand())
	return root
}

// subcommand is the Args of a command that only holds others: whatever is left is a name that there is not.
func (a *app) subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := helpHint(cmd)
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return cli.Usage(fmt.Sprintf("%s has no command %q", cmd.CommandPath(), args[0]), hint)
}

// group is the RunE of a command that only holds others.
func group(cmd *cobra.Command, _ []string) error {
	names := make([]string, 0, len(cmd.Commands()))
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	return cli.Usage(fmt.Sprintf("%s is not a command by itself", cmd.CommandPath()), "its commands are "+strings.Join(names, ", "))
}

// args checks how many arguments there are; the names are those in the command's Use.
func (a *app) args(lowest, highest int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= lowest && len(args) <= highest {
			return nil
		}
		_, names, _ := strings.Cut(cmd.Use, " ")
		switch {
		case highest == 0:
			a.problems.Add("%s takes no arguments, and got %q", cmd.CommandPath(), args)
		case len(args) > highest:
			a.problems.Add("%s takes %s, and got %d arguments too many: %q", cmd.CommandPath(), names, len(args)-highest, args[highest:])
		default:
			a.problems.Add("%s takes %s, and got %s", cmd.CommandPath(), names, counted(len(args), "argument"))
		}
		return nil
	}
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// flagError makes a sentence of what pflag says, and names the flag that may be meant.
func flagError(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return cli.Usage(err.Error(), helpHint(cmd))
	}
	name, dashes := unknown.GetSpecifiedName(), "--"
	if unknown.GetSpecifiedShortnames() != "" {
		dashes = "-"
	}
	hint := helpHint(cmd)
	if near := nearFlag(cmd, name); near != "" && dashes == "--" {
		hint = fmt.Sprintf("did you mean --%s?", near)
	}
	return cli.Usage(fmt.Sprintf("%s has no flag %s%s", cmd.CommandPath(), dashes, name), hint)
}

// nearFlag finds a flag of a similar name with the measure that cobra has for commands.
func nearFlag(cmd *cobra.Command, name string) string {
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	if near := names.SuggestionsFor(name); len(near) > 0 {
		return near[0]
	}
	return ""
}
