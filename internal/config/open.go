package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/redact"
)

// closeTimeout bounds the clean-up after a config of which one target is wrong.
const closeTimeout = 5 * time.Second

// LoadAndOpen is Load, ValidateDatabase (for an agent: a look at its files) and OpenTargets with one report of everything that is wrong. The drivers
// are opened also when something else is wrong, and closed again. The drivers come from opts.Registry.
func LoadAndOpen(opts LoadOptions, env driver.Env) (*Config, map[string]driver.Driver, error) {
	l := load(opts)
	if opts.Agent {
		l.cfg.openAgent(env, &l.problems)
	} else {
		l.cfg.checkDatabase(&l.problems)
	}
	l.checkProxies()
	drivers := l.cfg.openTargets(opts.Registry, env, l.closed, &l.problems)
	if opts.ReadStreams {
		l.cfg.openStreams(env, &l.problems)
	}
	if err := l.problems.err(); err != nil {
		closeAll(drivers)
		return nil, nil, err
	}
	return l.cfg, drivers, nil
}

// checkProxies checks the variables that HTTP clients take a proxy from.
func (l *loader) checkProxies() {
	for _, entry := range l.opts.Environ {
		name, value, _ := strings.Cut(entry, "=")
		if value == "" || !slices.Contains([]string{"HTTP_PROXY", "HTTPS_PROXY"}, strings.ToUpper(name)) {
			continue
		}
		if err := redact.CheckProxy(value); err != nil {
			l.problems.add(Origin{Source: SourceEnv, Name: name}, "", "%v", err)
		}
	}
}

// ValidateDatabase says whether there is a database to connect to. The error is an *Error.
func (c *Config) ValidateDatabase() error {
	var p problems
	c.checkDatabase(&p)
	return p.err()
}

func (c *Config) checkDatabase(p *problems) {
	const path = "database_url"
	for _, known := range *p {
		if known.Path == path {
			return // given, but wrong
		}
	}
	if !c.DatabaseURL.IsZero() {
		return
	}
	where := "a config file (-c FILE, or ./" + DefaultFile + ")"
	if c.File != "" {
		where = c.File
	}
	p.add(Origin{}, path, "is missing: set it in %s, or set %s%s, such as %s", where, envPrefix, envPart(path), urlExample)
}

// OpenTargets opens the driver of every target, by the target's name, or none: the error is an *Error with all
// problems of all targets, and then the drivers that could be opened are closed again. The caller closes them otherwise.
func (c *Config) OpenTargets(reg driver.Registry, env driver.Env) (map[string]driver.Driver, error) {
	var p problems
	drivers := c.openTargets(reg, env, nil, &p)
	if err := p.err(); err != nil {
		closeAll(drivers)
		return nil, err
	}
	return drivers, nil
}

func (c *Config) openTargets(reg driver.Registry, env driver.Env, skip map[int]bool, p *problems) map[string]driver.Driver {
	drivers := make(map[string]driver.Driver, len(c.Targets))
	var taken places
	for i, t := range c.Targets {
		if skip[i] {
			continue
		}
		kind, ok := reg.Lookup(t.Driver)
		if !ok {
			path := targetPath(i, "driver")
			p.add(c.origins[path], path, "unknown driver %q; %s", t.Driver, oneOfDrivers(reg.Names()))
			continue
		}
		d, err := kind.Open(t.Name, t.Options, env)
		if err != nil {
			c.addDriverProblems(p, i, err)
			continue
		}
		drivers[c.driverKey(drivers, i)] = d
		taken.add(c, p, i, d)
	}
	return drivers
}

// driverKey is the target's name. A config with a doubled or faulty name fails, but its drivers have to be closed too.
func (c *Config) driverKey(drivers map[string]driver.Driver, i int) string {
	name := c.Targets[i].Name
	if _, taken := drivers[name]; taken || name == "" {
		return fmt.Sprintf("targets[%d]", i)
	}
	return name
}

// addDriverProblems gives each problem of a driver its place in the config.
func (c *Config) addDriverProblems(p *problems, i int, err error) {
	var all driver.Problems
	if !errors.As(err, &all) || len(all) == 0 {
		all = driver.Problems{{Path: "options", Text: err.Error()}}
	}
	for _, one := range all {
		path := targetPath(i, one.Path)
		p.add(c.nearestOrigin(path), path, "%s", one.Text)
	}
}

// nearestOrigin is the origin of a path or, for one that is missing, of what it would stand in.
func (c *Config) nearestOrigin(path string) Origin {
	for {
		if o, ok := c.origins[path]; ok {
			return o
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return Origin{}
		}
		path = path[:cut]
	}
}

func closeAll(drivers map[string]driver.Driver) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), closeTimeout, errors.New("closing drivers after a faulty configuration took too long"))
	defer cancel()
	for _, d := range drivers {
		// Nothing was applied; the configuration's problems are what the caller has to hear.
		_ = driver.Safely(func() error { return d.Close(ctx) })
	}
}
