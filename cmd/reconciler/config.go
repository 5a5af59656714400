package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/config"
)

func (a *app) configCommand(agent bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the configuration",
		Args:  a.subcommand,
		RunE:  group,
	}
	cmd.AddCommand(a.configPrintCommand(agent))
	return cmd
}

func (a *app) configPrintCommand(agent bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print every value in effect, and where it comes from",
		Long:  "Prints every value in effect, and where it comes from: flag, environment, file or default. Secrets are left out.",
		Args:  a.args(0, 0),
	}
	a.configFlags(cmd, agent)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		opts := a.loadOptions()
		if agent {
			opts = a.agentOptions()
		}
		cfg, err := config.Load(opts)
		if err := a.problems.Err(err, helpHint(cmd)); err != nil {
			return err
		}
		return cfg.Print(a.stdout, config.Format(a.output))
	}
	return cmd
}

// configFlags adds a flag for each key of the config but the URLs, which hold passwords, and the targets. Flags can be
// seen by every user of the machine.
func (a *app) configFlags(cmd *cobra.Command, agent bool) {
	for _, k := range config.Knobs(agent) {
		if strings.HasPrefix(k.Path, "targets") || k.Type == "URL" {
			continue
		}
		usage := strings.TrimSuffix(k.Help, ".")
		if k.Bounds != "" {
			usage += " (" + k.Bounds + ")"
		}
		cmd.Flags().Var(&override{path: k.Path, def: k.Default, values: &a.overrides}, flagOf(k.Path), strings.ReplaceAll(usage, "`", ""))
	}
}

func flagOf(path string) string { return strings.NewReplacer(".", "-", "_", "-").Replace(path) }

// override is a flag that sets a key of the config, which is checked there.
type override struct {
	path, def string
	values    *map[string]string
}

// String returns the key's default, for the help.
func (o *override) String() string { return o.def }

// Type returns what the help shows for the value.
func (*override) Type() string { return "value" }

// Set notes the value.
func (o *override) Set(value string) error {
	if *o.values == nil {
		*o.values = map[string]string{}
	}
	(*o.values)[o.path] = value
	return nil
}
