package watch

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/google/uuid"
)

// bookmark is a place in a stream: everything up to a version was sent. Clients hold it as an opaque text.
type bookmark struct {
	stream, epoch uuid.UUID
	scope         scope
	version       int64
	// paging: a snapshot that began at the version is under way, and its objects before this place were sent.
	paging bool
	at     place
}

const bookmarkFormat = 1

var errBookmark = errors.New("since is not a bookmark: use the text of a checkpoint or an end_of_snapshot, unchanged")

// String encodes the bookmark in letters that need no escaping in a URL.
func (b bookmark) String() string {
	data := []byte{bookmarkFormat, 0}
	if b.paging {
		data[1] = 1
	}
	data = append(data, b.stream[:]...)
	data = append(data, b.epoch[:]...)
	data = append(data, b.scope[:]...)
	data = binary.AppendVarint(data, b.version)
	if b.paging {
		data = binary.AppendUvarint(data, uint64(len(b.at.resource)))
		data = append(append(data, b.at.resource...), b.at.key...)
	}
	// Against typing errors, not against forgery: a bookmark gives no rights.
	data = binary.BigEndian.AppendUint32(data, crc32.ChecksumIEEE(data))
	return base64.RawURLEncoding.EncodeToString(data)
}

func parseBookmark(text string) (b bookmark, err error) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(data) < 4 {
		return b, errBookmark
	}
	data, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	fixed := 2 + len(b.stream) + len(b.epoch) + len(b.scope)
	if sum != crc32.ChecksumIEEE(data) || len(data) <= fixed || data[0] != bookmarkFormat || data[1] > 1 {
		return b, errBookmark
	}
	b.paging = data[1] == 1
	rest := data[2:]
	rest = rest[copy(b.stream[:], rest):]
	rest = rest[copy(b.epoch[:], rest):]
	rest = rest[copy(b.scope[:], rest):]
	version, n := binary.Varint(rest)
	if n <= 0 {
		return b, errBookmark
	}
	b.version, rest = version, rest[n:]
	if !b.paging {
		if len(rest) > 0 {
			return b, errBookmark
		}
		return b, nil
	}
	size, n := binary.Uvarint(rest)
	if n <= 0 || size > uint64(len(rest)-n) {
		return b, errBookmark
	}
	b.at = place{resource: string(rest[n : n+int(size)]), key: string(rest[n+int(size):])}
	return b, nil
}
