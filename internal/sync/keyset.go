package sync

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// keySet is a set of keys in eight bytes each: a million keys are 8 MB. Two keys with equal hashes (one chance in 2^64
// for each pair) would hide one missing object until its content changes.
type keySet struct{ hashes []uint64 }

func (s *keySet) add(key string) { s.hashes = append(s.hashes, keyHash(key)) }

func (s *keySet) sort() { slices.Sort(s.hashes) }

func (s *keySet) has(key string) bool {
	_, ok := slices.BinarySearch(s.hashes, keyHash(key))
	return ok
}

func keyHash(key string) uint64 {
	sum := sha256.Sum256([]byte(key))
	return binary.BigEndian.Uint64(sum[:8])
}
