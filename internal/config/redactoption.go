package config

import (
	"regexp"
	"strings"

	"github.com/pgreconciler/reconciler/internal/redact"
)

var (
	// secretWord marks names and texts that have to do with secrets. Too much is hidden rather than too little.
	secretWord = regexp.MustCompile(`(?i)secret|passw|passphrase|pwd|token|credential|api[-_]?key|access[-_]?key|private[-_]?key|` +
		`signing[-_]?key|authori[sz]ation|bearer|cookie|signature`)
	// namesSecret marks options that only say where a secret is.
	namesSecret = regexp.MustCompile(`(?i)_(env|file|path)$`)
	// carrier marks mappings whose values are somebody else's: headers of a request, environment of a command.
	carrier = regexp.MustCompile(`(?i)^(headers?|env|environment)$`)
	// connection marks texts that are or contain a URL or a connection string.
	connection = regexp.MustCompile(`://|(?i:\b(host|user|dbname|password)\s*=)`)
)

// redactOption returns an option as it may be shown. Which options are secrets only the driver knows; what
// looks like one, by its name or by itself, is hidden.
func redactOption(name string, value any) any {
	if secretWord.MatchString(name) && !namesSecret.MatchString(name) {
		return redact.Redacted
	}
	switch value := value.(type) {
	case string:
		if namesSecret.MatchString(name) {
			return value
		}
		return redactText(value)
	case []any:
		return redactList(name, value)
	case map[string]any:
		shown := make(map[string]any, len(value))
		for k, v := range value {
			shown[k] = redactOption(k, v)
			if carrier.MatchString(name) {
				shown[k] = redact.Redacted
			}
		}
		return shown
	default:
		return value
	}
}

// redactList knows of commands: what follows --password is one.
func redactList(name string, list []any) []any {
	shown := make([]any, len(list))
	afterFlag := false
	for i, item := range list {
		shown[i] = redactOption(name, item)
		text, isText := item.(string)
		if afterFlag {
			shown[i] = redact.Redacted
		}
		afterFlag = isText && strings.HasPrefix(text, "-") && secretWord.MatchString(text) && !strings.Contains(text, "=")
		if afterFlag {
			shown[i] = text
		}
	}
	return shown
}

func redactText(s string) string {
	if secretWord.MatchString(s) && !connection.MatchString(s) {
		return redact.Redacted
	}
	if connection.MatchString(s) {
		return redact.URL(s)
	}
	return s
}
