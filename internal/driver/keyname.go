package driver

import (
	"fmt"
	"strings"
)

// chunkBytesMax is how long a part of an encoded key may be. File systems allow 255 bytes in a name; the
// rest is room for a file extension and for the mark of a directory.
const chunkBytesMax = 200

// chunkMark ends the name of a directory that holds the continuation of a long key. A percent sign that no two
// hexadecimal digits follow never stands in an encoding, so such a directory is never taken for an object.
const chunkMark = "%"

const emptyKey = "%"

// EncodeKey turns a key (or any other name that users choose) into a relative, slash-separated path that
// stays inside its directory whatever the key holds. It is injective, and DecodeKey reverses it.
//
// Letters, digits, '.', '_' and '-' stand for themselves, but for a '.' or '-' at the beginning; every other
// byte becomes %XX; the empty key is "%". An encoding of more than 200 bytes is cut into nested directories,
// each but the last marked with a '%' at its end. No part begins with '.' or '-', is longer than 201 bytes,
// or, with an extension added to the last one, can be the name of another key's file or directory.
func EncodeKey(key string) string {
	if key == "" {
		return emptyKey
	}
	var b strings.Builder
	b.Grow(len(key))
	chunk := 0 // bytes in the current part
	for i := range len(key) {
		piece := encodeByte(key[i], chunk == 0)
		if chunk+len(piece) > chunkBytesMax {
			b.WriteString(chunkMark + "/")
			chunk, piece = 0, encodeByte(key[i], true)
		}
		b.WriteString(piece)
		chunk += len(piece)
	}
	return b.String()
}

// DecodeKey is the inverse of EncodeKey. It refuses every path that EncodeKey does not produce, so that a
// foreign file is never taken for an object.
func DecodeKey(path string) (string, error) {
	if path == emptyKey {
		return "", nil
	}
	encoded, ok := joinChunks(path)
	if !ok {
		return "", notEncoded(path)
	}
	var b strings.Builder
	b.Grow(len(encoded))
	for i := 0; i < len(encoded); i++ {
		c := encoded[i]
		if c == '%' {
			if i+2 >= len(encoded) {
				return "", notEncoded(path)
			}
			// What unhex makes of other characters does not survive the comparison below.
			c = unhex(encoded[i+1])<<4 | unhex(encoded[i+2])
			i += 2
		}
		b.WriteByte(c)
	}
	// One comparison stands for every rule of the encoding: lower-case digits, needless escapes, wrong cuts.
	if key := b.String(); key != "" && EncodeKey(key) == path {
		return key, nil
	}
	return "", notEncoded(path)
}

func joinChunks(path string) (string, bool) {
	parts := strings.Split(path, "/")
	for i := range len(parts) - 1 {
		part, ok := strings.CutSuffix(parts[i], chunkMark)
		if !ok {
			return "", false
		}
		parts[i] = part
	}
	return strings.Join(parts, ""), true
}

func notEncoded(path string) error {
	return fmt.Errorf("%q is not the encoding of a key", path)
}

const upperHex = "0123456789ABCDEF"

// encodeByte returns how a byte is written; first says that it begins a part.
func encodeByte(c byte, first bool) string {
	if isPlain(c) && (!first || c != '.' && c != '-') {
		return plain[c : c+1]
	}
	return string([]byte{'%', upperHex[c>>4], upperHex[c&15]})
}

func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
}

// plain holds each ASCII byte at its own place, so that a plain byte becomes a string without an allocation.
var plain = func() string {
	var all [128]byte
	for i := range all {
		all[i] = byte(i)
	}
	return string(all[:])
}()

func unhex(c byte) byte {
	if c >= 'A' {
		return c - 'A' + 10
	}
	return c - '0'
}
