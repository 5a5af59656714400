package cli

import (
	"strconv"
	"strings"
	"unicode"
)

// Clean escapes what would upset a terminal: a key, a name or an error text may come from anywhere.
func Clean(s string) string { return clean(s, false) }

// CleanLines is Clean for texts of several lines.
func CleanLines(s string) string { return clean(s, true) }

func clean(s string, lines bool) string {
	if strings.IndexFunc(s, unprintable) < 0 && strings.ToValidUTF8(s, "") == s {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '\n' && lines:
			b.WriteRune(r)
		case r == unicode.ReplacementChar && !strings.HasPrefix(s[i:], string(unicode.ReplacementChar)):
			b.WriteString(`\x` + strconv.FormatUint(uint64(s[i]), 16)) // a byte that is no UTF-8
		case unprintable(r):
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// QuoteLiteral writes a text as PostgreSQL's quote_literal does: it stays one literal under every setting.
func QuoteLiteral(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}
