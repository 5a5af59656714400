package apply

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/pgreconciler/reconciler/internal/desired"
)

// maxKeyBytes is the length of the longest key that the ledger can hold.
const maxKeyBytes = desired.KeyBytesMost

// ledgerKey is the key under which the ledger keeps an object: the object's own, unless it is too long for an index.
func ledgerKey(key string) string {
	if len(key) <= maxKeyBytes {
		return key
	}
	return fmt.Sprintf("%s... (sha256 %x)", clip(strings.ToValidUTF8(key[:200], "")), sha256.Sum256([]byte(key)))
}

var shortenedKey = regexp.MustCompile(`\.\.\. \(sha256 [0-9a-f]{64}\)$`)

// maxErrorBytes bounds an error's text in the ledger.
const maxErrorBytes = 4096

// clip bounds an error's text and keeps it valid UTF-8 without NUL, which PostgreSQL cannot store.
func clip(text string) string {
	clean := make([]rune, 0, min(len(text), maxErrorBytes))
	size := 0
	for _, c := range text {
		if c == 0 {
			c = utf8.RuneError
		}
		size += utf8.RuneLen(c)
		if size > maxErrorBytes {
			break
		}
		clean = append(clean, c)
	}
	return string(clean)
}
