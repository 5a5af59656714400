package redact

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// C69.
func TestRedactURLShowsOnlyWhatIsHarmless(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":                                      "",
		"postgres://app:hunter2@db:5432/shop":   "postgres://app:REDACTED@db:5432/shop",
		"postgresql://app@db/shop":              "postgresql://app@db/shop",
		"postgres:///shop?host=/run/postgresql": "postgres:///shop?host=/run/postgresql",
		"postgres://app:hunter2@a:1,b:2/shop?sslmode=require":                   "postgres://app:REDACTED@a:1,b:2/shop?sslmode=require",
		"postgres://app:hunter2@[::1]:5432/shop":                                "postgres://app:REDACTED@[::1]:5432/shop",
		"postgres://h/db?user=app&password=hunter2&port=1":                      "postgres://h/db?user=app&password=REDACTED&port=1",
		"postgres://h/db?sslkey=/etc/key&sslpassword=hunter2":                   "postgres://h/db?sslkey=/etc/key&sslpassword=REDACTED",
		"postgres://h/db?sslinline=true&sslkey=hunter2":                         "postgres://h/db?sslinline=true&sslkey=REDACTED",
		"postgres://h/db?port=1&pass=hunter2":                                   "postgres://h/db?REDACTED",
		"postgres://h/db?passw%6frd=hunter2":                                    "postgres://h/db?REDACTED",
		"postgres://app:hun/ter2@db/shop":                                       "postgres://REDACTED",
		"postgres://app:hun@ter2@db/shop":                                       "postgres://REDACTED",
		"postgres://app:hun?ter2@db/shop":                                       "postgres://REDACTED",
		"postgres://app:hun#ter2@db/shop":                                       "postgres://REDACTED",
		"postgres://app:hun ter2@db/shop":                                       "postgres://REDACTED",
		"postgres://app:hunter2":                                                "postgres://REDACTED",
		" postgres://app:hunter2@db/shop":                                       "REDACTED",
		"mysql://app:hun/ter2@db":                                               "REDACTED",
		"https://hunter2:@hooks.internal/":                                      "https://REDACTED@hooks.internal/",
		"https://hooks.internal/apply":                                          "https://hooks.internal/apply",
		"https://hooks.internal/apply?token=hunter2":                            "https://hooks.internal/apply?REDACTED",
		"https://hunter2@hooks.internal/apply":                                  "https://REDACTED@hooks.internal/apply",
		"https://me:hunter2@hooks.internal/":                                    "https://REDACTED@hooks.internal/",
		"host=db user=app password=hunter2 dbname=shop":                         "host=db user=app password=REDACTED dbname=shop",
		`host = db password = 'hunter2 \' x' port=1`:                            "host=db password=REDACTED port=1",
		"host=db password=hunter2 secret":                                       "REDACTED",
		"host=db password=hunter2 extra=1":                                      "REDACTED",
		"host=db password='hunter2":                                             "REDACTED",
		"hunter2":                                                               "REDACTED",
		"host=db options='-c app.key=hunter2'":                                  "host=db options=REDACTED",
		"host=db sslinline=true sslkey=hunter2":                                 "host=db sslinline=true sslkey=REDACTED",
		"host=db\tpassword=postgres://hunter2":                                  "host=db password=REDACTED",
		"postgres://app:hunter2@db/shop?application_name=x&sslmode=verify-full": "postgres://app:REDACTED@db/shop?application_name=x&sslmode=verify-full",
	} {
		require.Equal(t, want, URL(raw), raw)
	}
}

// marker is a password that no other part of a URL can be mistaken for.
const marker = "hunter2"

// C69: wherever the password stands, and whatever surrounds it, no piece of it that could be told is shown.
func TestRedactURLNeverShowsThePassword(t *testing.T) {
	t.Parallel()
	rapid.Check(t, passwordIsNotShown)
}

func passwordIsNotShown(t *rapid.T) {
	noise := rapid.StringOfN(rapid.RuneFrom([]rune(`ab:/@?#&= '\%[]",;1`)), 0, 6, -1)
	password := noise.Draw(t, "before") + marker + noise.Draw(t, "after")
	template := rapid.SampledFrom([]string{
		"postgres://app:%s@db:5432/shop?sslmode=require",
		"postgres://app:%s@a:1,b:2/shop",
		"postgres://db/shop?password=%s&sslmode=require",
		"https://app:%s@db/path?x=y",
		"https://%s@db/path",
		"https://db/path?token=%s",
		"host=db password=%s dbname=shop",
		"password='%s' host=db",
	}).Draw(t, "template")
	raw := fmt.Sprintf(template, password)
	if shown := URL(raw); strings.Contains(shown, marker) {
		t.Fatalf("%s is shown as %s", raw, shown)
	}
}

// C69
func FuzzRedactURL(f *testing.F) { f.Fuzz(rapid.MakeFuzz(passwordIsNotShown)) }
