package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
)

func (a *app) kubernetesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubernetes",
		Short: "Prepare clusters that targets of the driver kubernetes apply to",
		Long:  "Prepares clusters that targets of the driver kubernetes apply to.",
		Args:  a.subcommand,
		RunE:  group,
	}
	cmd.AddCommand(a.rbacCommand())
	return cmd
}

func (a *app) rbacCommand() *cobra.Command {
	var account string
	cmd := &cobra.Command{
		Use:   "rbac TARGET",
		Short: "Print the least roles that a target needs in its cluster",
		Long: "Prints the least roles that a target needs in its cluster, and their bindings to a service account, for kubectl apply:\n" +
			"rights for the kinds and namespaces that its rows name, that the ledger remembers, and that the target's ApplySet lists.\n" +
			"Print and apply them again before rows name another kind or namespace. With options.namespaces the target needs roles in\n" +
			"these namespaces only, unless rows name kinds without a namespace. It reads the kinds of the cluster and the ApplySet, with\n" +
			"the credentials of the target's options. The cluster's own roles let every account read the kinds.",
		Args: a.args(1, 1),
	}
	cmd.Flags().StringVar(&account, "service-account", "", "`NAMESPACE/NAME` that the roles are bound to (default \"reconciler\" in options.namespace)")
	cmd.RunE = a.configured(func(ctx context.Context, cfg *config.Config, cmd *cobra.Command, args []string) error {
		targets, err := chosenTargets(cfg, args)
		if err != nil {
			return err
		}
		s, err := cli.Open(ctx, cfg, cli.SessionOptions{Command: cmd.Name(), Need: cli.Runtime, Notices: a.stderr})
		if err != nil {
			return err
		}
		defer s.Close()
		objects, err := cli.Objects(ctx, s.Conn(), targets[0].Name)
		if err != nil {
			return s.Fail(ctx, err)
		}
		drv, err := a.openTarget(targets[0])
		if err != nil {
			return cli.Usage(err.Error(), helpHint(cmd))
		}
		defer a.closeDriver(ctx, targets[0].Name, drv)
		permitter, ok := drv.(driver.Permitter)
		if !ok {
			return cli.Usage(fmt.Sprintf("target %s has the driver %s: there are no roles for it", targets[0].Name, targets[0].Driver), helpHint(cmd))
		}
		return s.Fail(ctx, a.printPermissions(ctx, permitter, targets[0].Name, account, objects))
	})
	return cmd
}

func (a *app) printPermissions(
	ctx context.Context, permitter driver.Permitter, target, account string, objects iter.Seq2[driver.Object, error],
) error {
	var failed error
	text, notes, err := permitter.Permissions(ctx, account, func(yield func(driver.Object, error) bool) {
		for obj, err := range objects {
			if failed = err; !yield(obj, err) {
				return
			}
		}
	})
	problems, isProblems := errors.AsType[driver.Problems](err)
	switch {
	case failed != nil:
		return failed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isProblems:
		return cli.Usage("--service-account: "+problems[0].Text, "see `reconciler kubernetes rbac --help`")
	case err != nil:
		return &cli.Failure{Code: cli.ExitUnreachable, Text: fmt.Sprintf("target %s: %v", target, err), Err: err}
	}
	for _, note := range notes {
		a.note("%s", note)
	}
	if a.printer().JSON() {
		return a.printer().Value(map[string]any{"manifests": string(text), "notes": notes})
	}
	for line := range strings.Lines(string(text)) {
		if err := a.printer().Line(strings.TrimSuffix(line, "\n")); err != nil {
			return err
		}
	}
	return nil
}
