package main

import (
	"fmt"
	"io/fs"
	"path"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/pgreconciler/reconciler/db/migrations"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  a.args(0, 0),
		RunE: a.plain(func(*cobra.Command, []string) error {
			schema, err := newestMigration()
			if err != nil {
				return err
			}
			platform := runtime.GOOS + "/" + runtime.GOARCH
			if a.printer().JSON() {
				return a.printer().Value(versions{version, schema, runtime.Version(), platform})
			}
			return a.printer().Line(fmt.Sprintf("reconciler %s (%s, %s), schema version %d", version, runtime.Version(), platform, schema))
		}),
	}
}

// versions is what the binary is and brings.
type versions struct {
	Version       string `json:"version"`
	SchemaVersion int    `json:"schema_version"`
	GoVersion     string `json:"go_version"`
	Platform      string `json:"platform"`
}

// newestMigration is the version of the schema that this binary brings.
func newestMigration() (newest int, err error) {
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		return 0, fmt.Errorf("list migrations: %w", err)
	}
	for _, name := range names {
		number := 0
		if _, err := fmt.Sscanf(path.Base(name), "%d_", &number); err != nil {
			return 0, fmt.Errorf("read the number of migration %s: %w", name, err)
		}
		newest = max(newest, number)
	}
	return newest, nil
}
