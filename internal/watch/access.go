package watch

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/pace"
)

// readEvery is how often files of tokens and the certificate are read again.
var readEvery = pace.Of(5 * time.Second)

// grant is what one token may do.
type grant struct {
	name      string
	allow     []string // config.AllowRead, config.AllowReport
	targets   []string // none: all
	resources []string // none: all
	watchers  atomic.Int64
	revoked   chan struct{} // closed when the token is no longer valid; nil: never
}

func (g *grant) mayRead(target string) bool { return g.may(config.AllowRead, target) }

func (g *grant) mayReport(target string) bool { return g.may(config.AllowReport, target) }

func (g *grant) may(do, target string) bool {
	return slices.Contains(g.allow, do) && (len(g.targets) == 0 || slices.Contains(g.targets, target))
}

// limit narrows the resources of a filter to those of the grant. It returns one that the grant does not have.
func (g *grant) limit(resources []string) (limited []string, refused string) {
	if len(g.resources) == 0 {
		return resources, ""
	}
	for _, resource := range resources {
		if !slices.Contains(g.resources, resource) {
			return nil, resource
		}
	}
	if len(resources) == 0 {
		resources = slices.Clone(g.resources)
	}
	return resources, ""
}

// Access checks who may read and report, by tokens of which it knows the hashes alone.
type Access struct {
	cfg    config.Streams
	getenv func(string) string
	loops  *loop.Monitor

	mu     sync.Mutex // guards what follows
	grants map[[sha256.Size]byte]*grant
	of     [][][sha256.Size]byte // hashes of each entry of the config
	cert   *tls.Certificate
}

// NewAccess reads the tokens and the certificate of the config.
func NewAccess(cfg config.Streams, getenv func(string) string, loops *loop.Monitor) (*Access, error) {
	a := &Access{cfg: cfg, getenv: getenv, loops: loops, grants: map[[sha256.Size]byte]*grant{}, of: make([][][sha256.Size]byte, len(cfg.Tokens))}
	return a, a.read()
}

// Run reads tokens and the certificate again until ctx ends. What cannot be read stays as it was.
func (a *Access) Run(ctx context.Context) error {
	if len(a.cfg.Tokens) == 0 && a.cfg.TLSCertFile == "" {
		return nil
	}
	return a.loops.Loop(loop.Credentials, "").Run(ctx, loop.Schedule{
		First: readEvery, AgainMin: readEvery, AgainMax: readEvery,
		Turn: func(context.Context) (time.Duration, error) { return readEvery, a.read() },
	})
}

func (a *Access) read() error {
	var problems []error
	if a.cfg.TLSCertFile != "" {
		cert, err := tls.LoadX509KeyPair(a.cfg.TLSCertFile, a.cfg.TLSKeyFile)
		if err != nil {
			problems = append(problems, fmt.Errorf("streams.tls_cert_file: %w", err))
		} else {
			a.mu.Lock()
			a.cert = &cert
			a.mu.Unlock()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	valid := map[[sha256.Size]byte]*grant{}
	for i, t := range a.cfg.Tokens {
		if tokens, err := t.Read(a.getenv); err != nil {
			problems = append(problems, fmt.Errorf("streams.tokens[%d] (%s): %w", i, t.Name, err))
		} else {
			a.of[i] = nil
			for _, token := range tokens {
				a.of[i] = append(a.of[i], sha256.Sum256([]byte(token)))
			}
		}
		for _, hash := range a.of[i] {
			known := a.grants[hash]
			if known == nil || known.name != t.Name {
				known = &grant{name: t.Name, allow: t.Allow, targets: t.Targets, resources: t.Resources, revoked: make(chan struct{})}
			}
			valid[hash] = known
		}
	}
	for hash, g := range a.grants {
		if valid[hash] != g {
			close(g.revoked)
		}
	}
	a.grants = valid
	return errors.Join(problems...)
}

// authenticate returns what the token of a request may do, nil if it has no valid one.
func (a *Access) authenticate(r *http.Request) *grant {
	if len(a.cfg.Tokens) == 0 {
		return &grant{allow: []string{config.AllowRead, config.AllowReport}}
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil
	}
	presented := sha256.Sum256([]byte(strings.TrimSpace(token)))
	a.mu.Lock()
	defer a.mu.Unlock()
	var found *grant
	for hash, g := range a.grants { // all of them: how long it takes tells nothing
		if subtle.ConstantTimeCompare(hash[:], presented[:]) == 1 {
			found = g
		}
	}
	return found
}

// TLS returns the configuration of a listener, nil for none.
func (a *Access) TLS() *tls.Config {
	if a.cfg.TLSCertFile == "" {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.cert, nil
		},
	}
}

// Open reports whether everyone who can connect may read and report.
func (a *Access) Open() bool { return len(a.cfg.Tokens) == 0 }
