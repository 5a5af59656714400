package loop

import (
	"errors"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// textMost bounds the text of an error, in bytes.
const textMost = 500

var (
	userInfo = regexp.MustCompile(`://\S*@`)
	password = regexp.MustCompile(`(?i)\b(password|passwd|pwd|secret|token)\s*=\s*('[^']*'|\S+)`)
)

// Text is an error as it may be shown to everybody: without passwords, and without values of rows. PostgreSQL quotes those
// in errors about data (class 22), after a colon, and in details, which are not part of the text.
func Text(err error) string {
	text := err.Error()
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(pgErr.Code, "22") {
		short, _, _ := strings.Cut(pgErr.Message, ":")
		short, _, _ = strings.Cut(short, `"`)
		text = strings.ReplaceAll(text, pgErr.Message, strings.TrimSpace(short))
	}
	text = userInfo.ReplaceAllString(text, "://REDACTED@")
	text = password.ReplaceAllString(text, "$1=REDACTED")
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
	if len(text) <= textMost {
		return text
	}
	cut := textMost - len("...")
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "..."
}
