package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// The bounds of texts of an identity.
const (
	nameBytes    = 128
	versionBytes = 64 // of the version, and of the driver's name
)

// identity is what a client tells of itself.
type identity struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
	Driver  string `json:"driver,omitempty"`
	Held    int64  `json:"held,omitempty"`
	Trouble string `json:"trouble,omitempty"`
	Healthy *bool  `json:"healthy,omitempty"`
}

// encode checks an identity, and returns it as the database takes it, "" for none.
func (i *identity) encode() (string, error) {
	if i == nil {
		return "", nil
	}
	for _, text := range []struct {
		field, value string
		most         int
	}{{"name", i.Name, nameBytes}, {"version", i.Version, versionBytes}, {"driver", i.Driver, versionBytes}} {
		if len(text.value) > text.most || strings.ContainsFunc(text.value, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return "", fmt.Errorf("client.%s must be a text of at most %d bytes without control characters", text.field, text.most)
		}
	}
	if i.Held < 0 {
		return "", errors.New("client.held must be a whole number from 0 on")
	}
	i.Trouble = cut(storable(i.Trouble), messageBytes)
	data, err := json.Marshal(i)
	return string(data), err
}
