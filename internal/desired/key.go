package desired

import "strings"

// KeyBytesMost is the longest key that the ledger's index can hold, with room to spare.
const KeyBytesMost = 2000

// JoinKey makes an object's key from the texts of its key columns: the text itself for one column; several are
// joined by '/', with '\' before every '/' and '\' inside a part. It is reconciler.key_expression in Go.
func JoinKey(parts []string) string {
	if len(parts) == 1 {
		return parts[0]
	}
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = strings.NewReplacer(`\`, `\\`, `/`, `\/`).Replace(part)
	}
	return strings.Join(escaped, "/")
}

// SplitKey is JoinKey's inverse for a key of n columns. It reports false for a text that is no such key.
func SplitKey(key string, n int) ([]string, bool) {
	if n == 1 {
		return []string{key}, true
	}
	parts := make([]string, 0, n)
	var part strings.Builder
	for i := 0; i < len(key); i++ {
		switch key[i] {
		case '/':
			parts = append(parts, part.String())
			part.Reset()
		case '\\':
			i++
			if i == len(key) || key[i] != '\\' && key[i] != '/' {
				return nil, false
			}
			part.WriteByte(key[i])
		default:
			part.WriteByte(key[i])
		}
	}
	parts = append(parts, part.String())
	return parts, len(parts) == n
}
