package redact

import (
	"errors"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

const escapes = "write @ as %40, / as %2F, ? as %3F and # as %23"

// What CheckDatabase and CheckWeb return. None of them quotes the URL.
var (
	errVariable = errors.New("holds a variable that was not expanded, ${NAME} or $(NAME): write its value in its place, " +
		"for reconciler expands no variables, or write $ as %24 if it belongs to the password")
	errSpace   = errors.New("holds a space or a control character: write a space as %20")
	errUnclear = errors.New("holds an @, /, ? or # that is not percent-encoded, so that the password cannot be told from the host: " + escapes)
	errBareIP  = errors.New("holds an IPv6 address without brackets: write [::1], or [::1]:5432 with a port")
	errHost    = errors.New("holds a host that cannot be read: expected a name or an address, and perhaps a port in digits, " +
		"after the @ that ends the password")
	errPercent = errors.New("holds a % that no two hexadecimal digits follow: write % as %25")

	errNoScheme = errors.New("has no scheme: it must begin with postgres:// or postgresql://, such as " + databaseExample)
	errScheme   = errors.New("must begin with postgres:// or postgresql://, such as " + databaseExample)
	errSettings = errors.New("cannot be read as key=value pairs: put values with spaces or quotes in quotes, as in " +
		`password='two words', and write ' as \' and \ as \\`)
	errPieces = errors.New("holds a password and a setting that is not known, which could be a part of the password: " +
		"put the password in quotes, as in password='...', or in a URL write & as %26")
)

const (
	databaseExample = `"postgres://user@host:5432/database"`
	passfile        = ", or keep the password in a file: postgres://user@host:5432/database?passfile=PATH"
)

var (
	unexpanded = regexp.MustCompile(`\$\{[^{}]*\}|\$\([A-Za-z_][A-Za-z0-9_]*\)`)
	pairsBegin = regexp.MustCompile(`^\s*[A-Za-z0-9_.]+\s*=`)
)

// CheckExpanded returns an error if a text holds a shell's variable in place of its value.
func CheckExpanded(text string) error {
	if unexpanded.MatchString(text) {
		return errVariable
	}
	return nil
}

// CheckWeb returns an error if the parts of an http URL cannot be told apart with certainty. It does not show the URL.
func CheckWeb(raw string) error { return check(raw) }

// CheckProxy is CheckWeb for what HTTP_PROXY and HTTPS_PROXY hold: the scheme may be missing.
func CheckProxy(raw string) error {
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	return check(raw)
}

// CheckDatabase returns an error if raw is no database URL and no key=value pairs, or if their parts cannot be told apart
// with certainty. It does not show them.
func CheckDatabase(raw string) error {
	scheme, _, _ := strings.Cut(raw, "://")
	switch {
	case unexpanded.MatchString(raw):
		return errVariable
	case isURL(raw) && !isDatabaseScheme(scheme):
		return errScheme
	case isURL(raw):
		if err := check(raw); errors.Is(err, errUnclear) {
			return errors.New(err.Error() + passfile)
		} else if err != nil {
			return err
		}
		_, query, _ := strings.Cut(raw, "?")
		return checkPieces(parameters(query))
	case !pairsBegin.MatchString(raw):
		return errNoScheme
	}
	pairs, ok := splitSettings(raw)
	if !ok {
		return errSettings
	}
	return checkPieces(pairs)
}

func parameters(query string) (pairs [][2]string) {
	for parameter := range strings.SplitSeq(query, "&") {
		if name, _, _ := strings.Cut(parameter, "="); name != "" {
			pairs = append(pairs, [2]string{name})
		}
	}
	return pairs
}

// checkPieces rejects an unknown setting beside a password that is not in quotes: it may be a piece of the password, and the
// server would name it in an error.
func checkPieces(pairs [][2]string) error {
	open := slices.ContainsFunc(pairs, func(pair [2]string) bool {
		return strings.HasSuffix(pair[0], "password") && !strings.HasPrefix(pair[1], "'")
	})
	unknown := slices.ContainsFunc(pairs, func(pair [2]string) bool {
		known, _ := settingShown("", pair[0])
		return !known
	})
	if open && unknown {
		return errPieces
	}
	return nil
}

func check(raw string) error {
	_, rest, _ := strings.Cut(raw, "://")
	login := rest[:strings.LastIndex(rest, "@")+1]
	hosts, _, _ := strings.Cut(rest[len(login):], "/")
	hosts, _, _ = strings.Cut(hosts, "?")
	switch {
	case unexpanded.MatchString(raw):
		return errVariable
	case shownURL.MatchString(raw):
		return checkEscapes(raw)
	case strings.ContainsFunc(raw, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return errSpace
	case strings.Count(login, "@") > 1, strings.ContainsAny(login, "/?#"), strings.Contains(rest, "#"):
		return errUnclear
	}
	if _, err := netip.ParseAddr(hosts); err == nil {
		return errBareIP
	}
	return errHost
}

func checkEscapes(raw string) error {
	beforeQuery, _, _ := strings.Cut(raw, "?")
	if _, err := url.PathUnescape(beforeQuery); err != nil {
		return errPercent
	}
	return nil
}
