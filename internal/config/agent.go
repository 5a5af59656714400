package config

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/redact"
)

const (
	// AgentFile is read by an agent when it exists and no other file is named.
	AgentFile = "agent.yaml"

	agentListenDefault = "127.0.0.1:7434"
	agentNameMost      = 128
	serverExample      = "https://reconciler.example.org:8443"
)

// Agent is what an agent needs to know beside its targets. It is zero for the daemon.
type Agent struct {
	Server    string // URL of a process with streams.listen
	TokenFile string // "": TokenEnv, or the server asks for none
	TokenEnv  string // the name of a variable; "": TokenFile, or none
	TLSCAFile string // "": the system's certificates
	Name      string // shown at the server
	StateDir  string
}

// TLS returns the certificates that the server's is checked against, nil for those of the system.
func (a Agent) TLS() (*tls.Config, error) {
	if a.TLSCAFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(a.TLSCAFile)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", a.TLSCAFile)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

func anyPath() codec[string] { return word("path", "", func(string) error { return nil }) }

// agentKnobs are the keys of an agent. Those that the daemon has too are the same.
func agentKnobs() []knob[Config] {
	knobs := []knob[Config]{
		key("server", func(c *Config) *string { return &c.Agent.Server }, required, word("address", "`http` on the loopback interface only", checkServer),
			"URL of a process with `streams.listen`."),
		key("token_file", func(c *Config) *string { return &c.Agent.TokenFile }, "", anyPath(),
			"A file with the token, which is read again for each request.").withDefault("none"),
		key("token_env", func(c *Config) *string { return &c.Agent.TokenEnv }, "", word("name of a variable", "", func(string) error { return nil }),
			"A variable with the token, instead of a file.").withDefault("none"),
		key("tls_ca_file", func(c *Config) *string { return &c.Agent.TLSCAFile }, "", anyPath(),
			"Certificates, PEM, that the server's is checked against; read at start.").withDefault("the system's"),
		key("name", func(c *Config) *string { return &c.Agent.Name }, "", word("text", "1 to 128 bytes", checkAgentName),
			"What `reconciler.agents` calls this agent.").withDefault("the host's name"),
		key("state_dir", func(c *Config) *string { return &c.Agent.StateDir }, required, anyPath(),
			"A directory with one file for each target; it is made if it is missing. Only one agent may use it."),
	}
	for _, k := range globalKnobs() {
		if slices.Contains([]string{"listen", "listen_names", "shutdown_timeout", "log.level", "log.format"}, k.path) {
			if k.path == "listen" {
				k.def, k.init = agentListenDefault, func(c *Config) { c.Listen = agentListenDefault }
				k.help = "Where probes, metrics and the state are served. Approvals are taken from the same host only."
			}
			knobs = append(knobs, k)
		}
	}
	return knobs
}

// agentTargetKnobs are the keys of an agent's target: those of the daemon's, without what the server decides.
func agentTargetKnobs() []knob[Target] {
	help := map[string]string{
		"name": "The target at the server, which has `driver: stream` there.",
		"sync_interval": "Time between two looks at what the far side really has, where the driver can list it. " +
			"`off` leaves those at start and on `reconciler.resync()`.",
		"guard.max_deletes": "More deletes than this that follow from absence alone are held for approval; 0 holds each of them. " +
			"Unset: a tenth of the objects, and at least 10. Deletes that the server sends have passed its own guard. The same number of " +
			"parts may go within a minute that specs no longer name, such as manifests.",
	}
	var knobs []knob[Target]
	for _, k := range targetKnobs() {
		if slices.Contains([]string{"sync_mode", "guard.max_fraction", "guard.window"}, k.path) {
			continue
		}
		k.help = cmp.Or(help[k.path], k.help)
		knobs = append(knobs, k)
	}
	return knobs
}

// checkServer does not quote what may hold a password.
func checkServer(s string) error {
	if scheme, _, _ := strings.Cut(s, "://"); scheme == "http" || scheme == "https" {
		if err := redact.CheckWeb(s); err != nil {
			return err
		}
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("must be a URL such as %s", serverExample)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("must be a URL without user, query and fragment: the token stands in token_file or token_env")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return errors.New("must begin with https://: beyond the loopback interface, http:// would show the token and every spec to the network")
	}
	return nil
}

func isLoopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

func checkAgentName(s string) error {
	if s == "" || len(s) > agentNameMost || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return fmt.Errorf("must have 1 to %d bytes and no control characters", agentNameMost)
	}
	return nil
}

// completeAgent fills what depends on the host, and checks what is missing.
func (l *loader) completeAgent() {
	a := &l.cfg.Agent
	if a.Name == "" && !l.reported("name") {
		a.Name, _ = os.Hostname()
		if checkAgentName(a.Name) != nil {
			l.problems.add(Origin{}, "name", "is missing, and the host has no name to take its place")
		}
	}
	if a.Server == "" && !l.reported("server") {
		l.problems.add(Origin{}, "server", "is missing: give the URL of a process with streams.listen, such as %s", serverExample)
	}
	if a.TokenFile != "" && a.TokenEnv != "" {
		l.problems.add(l.cfg.origins["token_env"], "token_env", "give either token_file or token_env")
	}
	if a.StateDir == "" && !l.reported("state_dir") {
		l.problems.add(Origin{}, "state_dir", "is missing: name a directory that survives restarts, such as /var/lib/reconciler-agent")
	}
	if len(l.cfg.Targets) == 0 && !l.reported("targets") {
		l.problems.add(Origin{}, "targets", "is empty: configure at least one target")
	}
}

// openAgent checks what is outside of the config.
func (c *Config) openAgent(env driver.Env, p *problems) {
	a := c.Agent
	if err := writable(a.StateDir); err != nil && a.StateDir != "" {
		p.add(c.origins["state_dir"], "state_dir", "%s cannot be written to: %v", a.StateDir, withoutPath(err))
	}
	if a.TokenFile != "" {
		if text, err := os.ReadFile(a.TokenFile); err != nil {
			p.add(c.origins["token_file"], "token_file", "cannot be read: %v", err)
		} else if strings.TrimSpace(string(text)) == "" {
			p.add(c.origins["token_file"], "token_file", "%s holds no token", a.TokenFile)
		}
	}
	if a.TokenEnv != "" && strings.TrimSpace(env.Getenv(a.TokenEnv)) == "" {
		p.add(c.origins["token_env"], "token_env", "the variable %s is not set", a.TokenEnv)
	}
	if _, err := a.TLS(); err != nil {
		p.add(c.origins["tls_ca_file"], "tls_ca_file", "%v", err)
	}
}

// writable makes a directory, and returns why no file can be made in it.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
