package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
)

func (a *app) retryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "retry TARGET [RESOURCE [KEY]]",
		Short: "Try failing and blocked objects again now",
		Long:  "Has failing, blocked and waiting objects tried again now: one, all of a resource, or all of a target.",
		Args:  a.args(1, 3),
		RunE: a.onDatabase(cli.SessionOptions{Need: cli.Operator}, func(ctx context.Context, s *cli.Session, args []string) error {
			values := []any{args[0], nil, nil}
			for i, arg := range args {
				values[i] = arg
			}
			text, err := s.Text(ctx, "SELECT reconciler.retry($1, $2, $3)", values...)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(text)
			if err != nil {
				return fmt.Errorf("read the number of objects: %w", err)
			}
			if a.printer().JSON() {
				return a.printer().Value(map[string]int{"retried": n})
			}
			return a.printer().Line(counted(n, "object") + " to be tried again now")
		}),
	}
}
