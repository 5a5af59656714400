package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/migrate"
)

// readableByOthers are the bits of a file's mode that let others than its owner read it.
const readableByOthers = 0o044

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at everything that is known to go wrong",
		Long: "Looks at everything that is known to go wrong, in the database (as SELECT * FROM reconciler.doctor() does), in the\n" +
			"configuration, on the way between the two, and whether each target answers. The exit code is 1 when something is\n" +
			"wrong; what is wrong comes with what mends it.",
		Args: a.args(0, 0),
	}
	cmd.RunE = a.configured(func(ctx context.Context, cfg *config.Config, cmd *cobra.Command, _ []string) error {
		s, err := cli.Open(ctx, cfg, cli.SessionOptions{Command: cmd.Name(), Need: cli.Viewer, Notices: a.stderr})
		if err != nil {
			return err
		}
		defer s.Close()
		findings, err := a.examine(ctx, s, cfg)
		if err != nil {
			return err
		}
		return a.printFindings(findings)
	})
	return cmd
}

// examine makes every check, those of the configuration first.
func (a *app) examine(ctx context.Context, s *cli.Session, cfg *config.Config) ([]cli.Finding, error) {
	findings := []cli.Finding{checkTargetsGiven(cfg), checkFile(cfg), checkVersion(ctx, s)}
	table, err := s.Table(ctx, "SELECT * FROM reconciler.doctor()")
	if err != nil {
		return nil, err
	}
	for _, row := range table.Rows {
		findings = append(findings, cli.Finding{Check: row.Text("check_name"), OK: row.True("ok"), Finding: row.Text("finding"), Remedy: row.Text("remedy")})
	}
	findings = append(findings, cli.CheckListen(ctx, cfg))
	for _, t := range cfg.Targets {
		findings = append(findings, a.checkTarget(ctx, t))
		if reportless(cfg, t) {
			findings = append(findings, cli.Finding{
				Check: "ack", Finding: fmt.Sprintf("target %s waits for reports (ack: true), and no token may report on it: its objects stay pending", t.Name),
				Remedy: "Give a token of streams.tokens allow: [read, report], or set ack: false.",
			})
		}
	}
	return findings, context.Cause(ctx)
}

func checkTargetsGiven(cfg *config.Config) cli.Finding {
	where := cfg.File
	if where == "" {
		where = "the environment alone"
	}
	if len(cfg.Targets) == 0 {
		return cli.Finding{Check: "config", Finding: fmt.Sprintf("no target is configured (read: %s)", where), Remedy: "Name a target, or the config file with -c FILE."}
	}
	return cli.Finding{Check: "config", OK: true, Finding: fmt.Sprintf("%s in %s", counted(len(cfg.Targets), "target"), where)}
}

// checkFile looks whether a file with a password can be read by others.
func checkFile(cfg *config.Config) cli.Finding {
	holds := false
	for _, path := range []string{"database_url", "direct_url"} {
		url := cfg.DatabaseURL
		if path == "direct_url" {
			url = cfg.DirectURL
		}
		holds = holds || cfg.Origin(path).Source == config.SourceFile && url.String() != url.Reveal()
	}
	if !holds {
		return cli.Finding{Check: "secrets", OK: true, Finding: "no database password is in the config file"}
	}
	info, err := os.Stat(cfg.File)
	if err != nil {
		return cli.Finding{Check: "secrets", Finding: fmt.Sprintf("%s cannot be looked at: %v", cfg.File, err)}
	}
	if info.Mode().Perm()&readableByOthers != 0 {
		return cli.Finding{
			Check: "secrets", Finding: cfg.File + " holds a password and can be read by other users",
			Remedy: fmt.Sprintf("chmod 600 %s; or give the URL in RECONCILER_DATABASE_URL", cfg.File),
		}
	}
	return cli.Finding{Check: "secrets", OK: true, Finding: "the config file holds a password and only its owner can read it"}
}

// checkVersion compares the schema with this binary.
func checkVersion(ctx context.Context, s *cli.Session) cli.Finding {
	have, want, err := migrate.Version(ctx, s.Conn())
	newer := new(migrate.NewerSchemaError)
	switch {
	case errors.As(err, &newer):
		return cli.Finding{Check: "version", Finding: err.Error(), Remedy: "Use a newer reconciler."}
	case err != nil:
		return cli.Finding{Check: "version", Finding: err.Error()}
	case have < want:
		return cli.Finding{Check: "version", Finding: fmt.Sprintf("the schema has version %d, this reconciler (%s) needs %d", have, version, want), Remedy: "reconciler migrate up"}
	}
	return cli.Finding{Check: "version", OK: true, Finding: fmt.Sprintf("reconciler %s and the schema (version %d) fit", version, have)}
}

// checkTarget looks whether a target can be opened, and answers.
func (a *app) checkTarget(ctx context.Context, t config.Target) cli.Finding {
	drv, err := a.openTarget(t)
	if err != nil {
		return cli.Finding{Check: "target", Finding: err.Error(), Remedy: "Correct the options of the target, or run doctor where its secrets are."}
	}
	defer a.closeDriver(ctx, t.Name, drv)
	checker, ok := drv.(driver.Checker)
	if !ok {
		return cli.Finding{Check: "target", OK: true, Finding: fmt.Sprintf("target %s: its options are right; its driver has no way to ask whether it answers", t.Name)}
	}
	limited, cancel := context.WithTimeoutCause(ctx, t.Timeout, fmt.Errorf("no answer within %s", t.Timeout))
	defer cancel()
	if err := driver.Safely(func() error { return checker.Check(limited) }); err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			err = context.Cause(limited)
		}
		return cli.Finding{Check: "target", Finding: fmt.Sprintf("target %s does not answer: %v", t.Name, err), Remedy: "Mend the target; calls go on by themselves when it answers."}
	}
	return cli.Finding{Check: "target", OK: true, Finding: fmt.Sprintf("target %s answers", t.Name)}
}

// reportless reports whether a target waits for reports that the streams of this config refuse. Without tokens they take all.
func reportless(cfg *config.Config, t config.Target) bool {
	return t.Driver == "stream" && t.Options["ack"] == true && len(cfg.Streams.Tokens) > 0 &&
		!slices.ContainsFunc(cfg.Streams.Tokens, func(token config.Token) bool {
			return slices.Contains(token.Targets, t.Name) && slices.Contains(token.Allow, config.AllowReport)
		})
}

func (a *app) printFindings(findings []cli.Finding) error {
	wrong := 0
	for _, f := range findings {
		if !f.OK {
			wrong++
		}
	}
	show := a.printFindingLines
	if a.printer().JSON() {
		show = func(findings []cli.Finding) error { return a.printer().Value(findings) }
	}
	err := show(findings)
	if err == nil && wrong > 0 {
		err = &cli.Failure{Code: cli.ExitDiffers, Text: fmt.Sprintf("%s of %d found something wrong", counted(wrong, "check"), len(findings))}
	}
	return err
}

func (a *app) printFindingLines(findings []cli.Finding) error {
	for _, f := range findings {
		mark := "ok"
		if !f.OK {
			mark = "WRONG"
		}
		if err := a.printer().Line(fmt.Sprintf("%-5s  %-21s  %s", mark, f.Check, f.Finding)); err != nil {
			return err
		}
		if !f.OK && f.Remedy != "" {
			if err := a.printer().Line(fmt.Sprintf("%-5s  %-21s  -> %s", "", "", f.Remedy)); err != nil {
				return err
			}
		}
	}
	return nil
}
