package config

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/redact"
)

// URL is a database URL, or a keyword/value connection string. However it is printed, logged or encoded, its
// password is not shown; only Reveal returns it.
type URL struct{ raw string }

// NewURL returns a URL that has not been checked.
func NewURL(raw string) URL { return URL{raw} }

// Reveal returns the URL with its password, for connecting.
func (u URL) Reveal() string { return u.raw }

// IsZero reports whether nobody gave a URL.
func (u URL) IsZero() bool { return u.raw == "" }

// String returns the URL without its secrets.
func (u URL) String() string { return redact.URL(u.raw) }

// Format writes String for every verb: %x and %#v would show the field.
func (u URL) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, u.String()) }

// LogValue is String, for slog.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText is String, for JSON and YAML.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

func databaseURL() codec[URL] {
	return codec[URL]{
		typ:    "URL",
		format: URL.String,
		parse: func(n *node) (URL, error) {
			if err := wantString(n); err != nil {
				return URL{}, err
			}
			return URL{n.text}, checkDatabaseURL(n.text)
		},
	}
}

const urlExample = `"postgres://user@host:5432/database"`

// checkDatabaseURL parses the URL as the connection pool will. The error's text never has a part of it that
// could be a secret: it comes from parsing the redacted form, and is a general one when that can be parsed.
func checkDatabaseURL(raw string) error {
	if strings.TrimSpace(raw) == "" {
		return fmt.Errorf("is empty: write a URL such as %s", urlExample)
	}
	if err := redact.CheckDatabase(raw); err != nil {
		return err
	}
	if _, err := pgxpool.ParseConfig(raw); err == nil {
		return nil
	}
	shown := redact.URL(raw)
	if _, err := pgxpool.ParseConfig(shown); err != nil && !strings.HasSuffix(shown, redact.Redacted) {
		_, reason, _ := strings.Cut(err.Error(), "`: ")
		return fmt.Errorf("%s: %s", shown, reason)
	}
	return fmt.Errorf("cannot be parsed: expected a URL such as %s, or key=value pairs", urlExample)
}
