package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
)

const driverCloseTimeout = 5 * time.Second

// openTarget opens the driver of one target, for commands that look at it. Other targets' secrets are not needed then.
func (a *app) openTarget(t config.Target) (driver.Driver, error) {
	kind, ok := a.registry.Lookup(t.Driver)
	if !ok {
		return nil, fmt.Errorf("target %s: unknown driver %q", t.Name, t.Driver)
	}
	drv, err := kind.Open(t.Name, t.Options, driver.Env{Getenv: a.getenv})
	if problems, ok := errors.AsType[driver.Problems](err); ok {
		texts := make([]string, len(problems))
		for i, p := range problems {
			texts[i] = p.Path + ": " + p.Text
		}
		return nil, fmt.Errorf("target %s: %s", t.Name, strings.Join(texts, "; "))
	}
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", t.Name, err)
	}
	return drv, nil
}

// closeDriver closes a driver that was only looked at.
func (a *app) closeDriver(ctx context.Context, name string, drv driver.Driver) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), driverCloseTimeout, errors.New("closing the driver took too long"))
	defer cancel()
	if err := driver.Safely(func() error { return drv.Close(ctx) }); err != nil {
		a.note("closing target %s: %v", name, err)
	}
}

// chosenTargets are the configured targets that a command is for: all of them, or the one that is named.
func chosenTargets(cfg *config.Config, names []string) ([]config.Target, error) {
	if len(names) == 0 {
		if len(cfg.Targets) == 0 {
			return nil, cli.Usage("no target is configured", "`reconciler config print` shows what is")
		}
		return cfg.Targets, nil
	}
	if t, ok := cfg.Target(names[0]); ok {
		return []config.Target{t}, nil
	}
	known := make([]string, len(cfg.Targets))
	for i, t := range cfg.Targets {
		known[i] = t.Name
	}
	hint := "no target is configured"
	if len(known) > 0 {
		hint = "Targets of the configuration: " + strings.Join(known, ", ")
	}
	return nil, cli.Usage(fmt.Sprintf("no target %q is configured", names[0]), hint)
}
