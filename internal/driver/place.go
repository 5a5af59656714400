package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Placed is a driver whose options name the place where its objects are. Two targets of one config must not have one place: a row that
// moves between them would be applied by one and deleted by the other, in any order.
type Placed interface {
	Place() Place
}

// Place is where the objects of a target are. Two places of one driver are one when their names and details are equal.
type Place struct {
	Option string // that names it, such as "dir"
	Name   string // for people; never a secret
	Detail string // the rest of its identity; never shown
	Secret bool   // Detail is a secret: not even a hash of it is stored
	Dir    bool   // Name is the path of a directory: a place inside of it overlaps
	Apart  string // a sentence: how to give each of two targets a place of its own
}

// Key identifies the place among those of all drivers. It is "" for a place that is a secret.
func (p Place) Key(driver string) string {
	if p.Secret {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", driver, p.Name, p.Detail))
	return hex.EncodeToString(sum[:16])
}

// PlaceOf returns the place of a driver that names one.
func PlaceOf(d Driver) (Place, bool) {
	placed, ok := d.(Placed)
	if !ok {
		return Place{}, false
	}
	return placed.Place(), true
}
