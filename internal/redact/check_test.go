package redact

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	unclearDatabase = "holds an @, /, ? or # that is not percent-encoded, so that the password cannot be told from the host: " +
		"write @ as %40, / as %2F, ? as %3F and # as %23, or keep the password in a file: postgres://user@host:5432/database?passfile=PATH"
	unclearWeb = "holds an @, /, ? or # that is not percent-encoded, so that the password cannot be told from the host: " +
		"write @ as %40, / as %2F, ? as %3F and # as %23"
	bareIP   = "holds an IPv6 address without brackets: write [::1], or [::1]:5432 with a port"
	noScheme = `has no scheme: it must begin with postgres:// or postgresql://, such as "postgres://user@host:5432/database"`
	noHost   = "holds a host that cannot be read: expected a name or an address, and perhaps a port in digits, after the @ that ends the password"
	variable = "holds a variable that was not expanded, ${NAME} or $(NAME): write its value in its place, for reconciler expands no " +
		"variables, or write $ as %24 if it belongs to the password"
	pieces = "holds a password and a setting that is not known, which could be a part of the password: " +
		"put the password in quotes, as in password='...', or in a URL write & as %26"
	pairs = `cannot be read as key=value pairs: put values with spaces or quotes in quotes, as in password='two words', and write ' as \' and \ as \\`
)

func TestF136_DatabaseURLWhosePasswordIsUnclearIsRejected(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"postgres://app:p@ss/word#1@host/app":                             unclearDatabase,
		"postgres://app:p@ss@host/app":                                    unclearDatabase,
		"postgres://app:p/ss@host/app":                                    unclearDatabase,
		"postgres://app:12/ss@host/app":                                   unclearDatabase,
		"postgres://app:p?ss@host/app":                                    unclearDatabase,
		"postgres://app:p#ss@host/app":                                    unclearDatabase,
		"postgres://app:p#ss":                                             unclearDatabase,
		"postgres://app:p ss@host/app":                                    "holds a space or a control character: write a space as %20",
		"postgres://app:p%zz@host/app":                                    "holds a % that no two hexadecimal digits follow: write % as %25",
		"postgres://app:pass":                                             noHost,
		"postgres://app:pass@host:port/app":                               noHost,
		"postgres://app:pass@::1/app":                                     bareIP,
		"postgres://app:pass@::1:5432/app":                                bareIP,
		"postgres://::1":                                                  bareIP,
		"postgres://app:${PASSWORD}@host/app":                             variable,
		"${DATABASE_URL}":                                                 variable,
		"$(DATABASE_URL)":                                                 variable,
		"host=db password=${PASSWORD:-x}":                                 variable,
		"app:pass@host/app":                                               noScheme,
		"app:pa=ss@host/app":                                              noScheme,
		"::1":                                                             noScheme,
		"mysql://app:pass@host/app":                                       `must begin with postgres:// or postgresql://, such as "postgres://user@host:5432/database"`,
		"postgres://host/app?password=pa&ss=1":                            pieces,
		"host=db password=pa ss=1":                                        pieces,
		"host=db password=pa ss":                                          pairs,
		"postgres://app:p%40ss%2Fword%231@host/app":                       "",
		"postgres://app@[::1]:5432/app":                                   "",
		"postgres://app@a:1,b:2/app?work_mem=64MB":                        "",
		"postgres://app:pa$$word@host/app?password=x&sslmode=require":     "",
		"host=::1 password='pa ss=1' work_mem=64MB app.name=x":            "",
		"postgres:///app?host=/run/postgresql&options=-c%20a=b&work_mem=": "",
	} {
		requireError(t, want, CheckDatabase(raw), raw)
	}
}

func TestF136_WebAddressWhosePasswordIsUnclearIsRejected(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"http://app:p@ss/word#1@host/": unclearWeb,
		"https://tok/en@host/":         unclearWeb,
		"https://[::1]:8080/":          "",
		"https://::1/":                 bareIP,
		"HTTPS://app:p%2Fss@hööks/{resource}/{key}?full=100%": "",
		"https://${TOKEN}@host/":                              variable,
	} {
		requireError(t, want, CheckWeb(raw), raw)
	}
	for raw, want := range map[string]string{
		"proxy:3128":                    "",
		"app:pass@proxy:3128":           "",
		"socks5://app:pass@proxy":       "",
		"app:p@ss/word#1@proxy:3128":    unclearWeb,
		"http://app:p/ss@proxy:3128":    unclearWeb,
		"http://app:pass@proxy:${PORT}": variable,
	} {
		requireError(t, want, CheckProxy(raw), raw)
	}
}

func requireError(t *testing.T, want string, err error, raw string) {
	t.Helper()
	if want == "" {
		require.NoError(t, err, raw)
		return
	}
	require.EqualError(t, err, want, raw)
}

// What is accepted can be shown: its password is hidden, and its host is that of the URL.
func TestF136_AcceptedURLsCanBeTakenApart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		password := rapid.StringOfN(rapid.RuneFrom([]rune(`ab:/@?#&= '\%[]",;1${}`)), 1, 8, -1).Draw(t, "password")
		raw := fmt.Sprintf("postgres://app:%s@host/shop", password)
		if err := CheckDatabase(raw); err == nil && URL(raw) != "postgres://app:REDACTED@host/shop" {
			t.Fatalf("%s is accepted and shown as %s", raw, URL(raw))
		} else if err == nil && strings.ContainsAny(password, "@/?# ") {
			t.Fatalf("%s is accepted", raw)
		}
	})
}
