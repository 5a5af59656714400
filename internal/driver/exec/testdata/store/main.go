// Command store is a program as a user would write one for the exec driver: it keeps each object in a file
// of the directory STORE_DIR, and can list them.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

type message struct {
	Action   string          `json:"action"`
	Resource string          `json:"resource"`
	Key      string          `json:"key"`
	Hash     string          `json:"hash"`
	Spec     json.RawMessage `json:"spec"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err, os.Environ())
		os.Exit(1)
	}
}

func run() error {
	var m message
	if err := json.NewDecoder(os.Stdin).Decode(&m); err != nil {
		return err
	}
	dir := os.Getenv("STORE_DIR")
	sum := sha256.Sum256([]byte(m.Resource + "\x00" + m.Key))
	path := filepath.Join(dir, hex.EncodeToString(sum[:]))
	switch m.Action {
	case "apply":
		content, err := json.Marshal(m)
		if err != nil {
			return err
		}
		temp := fmt.Sprintf("%s.%d", path, os.Getpid())
		if err := os.WriteFile(temp, content, 0o600); err != nil {
			return err
		}
		return os.Rename(temp, path)
	case "delete":
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	case "list":
		return list(dir)
	default:
		return fmt.Errorf("unknown action %q", m.Action)
	}
}

func list(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(os.Stdout)
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != "" {
			continue // half written
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		var m message
		if err := json.Unmarshal(content, &m); err != nil {
			return err
		}
		if err := lines.Encode(map[string]string{"resource": m.Resource, "key": m.Key, "hash": m.Hash}); err != nil {
			return err
		}
	}
	return nil
}
