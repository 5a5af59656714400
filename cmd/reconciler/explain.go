package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
)

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain TARGET RESOURCE KEY",
		Short: "Tell the story of one object",
		Long: "Tells the story of one object in sentences: its row, its newest change, the ledger, the target, and what happens\n" +
			"next. The columns of a composite key are joined by \"/\". A key that begins with \"-\" comes after \"--\".",
		Args: a.args(3, 3),
		RunE: a.onDatabase(cli.SessionOptions{Need: cli.Viewer}, func(ctx context.Context, s *cli.Session, args []string) error {
			table, err := s.Table(ctx, "SELECT * FROM reconciler.explain($1, $2, $3) AS sentence", args[0], args[1], args[2])
			if err != nil {
				return err
			}
			sentences := make([]string, len(table.Rows))
			for i, row := range table.Rows {
				sentences[i] = row.Text("sentence")
			}
			if a.printer().JSON() {
				return a.printer().Value(explanation{args[0], args[1], args[2], sentences})
			}
			for _, sentence := range sentences {
				if err := a.printer().Line(sentence); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

// explanation is the story of one object.
type explanation struct {
	Target    string   `json:"target"`
	Resource  string   `json:"resource"`
	Key       string   `json:"key"`
	Sentences []string `json:"sentences"`
}
