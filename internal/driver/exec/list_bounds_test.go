package exec

import (
	"maps"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func listingOf(t *testing.T, script string, more driver.Options) *listingProgram {
	t.Helper()
	opts := driver.Options{"command": []any{"sh", "-c", "exit 0"}, "list_command": []any{"sh", "-c", script}}
	maps.Copy(opts, more)
	d, err := Kind().Open("test", opts, driver.Env{Getenv: os.Getenv})
	require.NoError(t, err)
	p, ok := d.(*listingProgram)
	require.True(t, ok)
	return p
}

func listed(t *testing.T, p *listingProgram) (found int, last error) {
	t.Helper()
	for _, err := range p.List(t.Context(), []string{"apps"}) {
		if last = err; err == nil {
			found++
		}
	}
	return found, last
}

func TestF81_AListingThatFallsSilentIsStopped(t *testing.T) {
	t.Parallel()
	const line = `echo '{"resource": "apps", "key": "a"}'; `
	for name, script := range map[string]string{"AtOnce": ``, "Later": line + line} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := listingOf(t, script+`exec sleep 1000`, driver.Options{"list_timeout": "300ms"})
			_, err := listed(t, p)
			require.EqualError(t, err, "sh: the command was stopped: it wrote no line for 300ms (options.list_timeout)")
		})
	}
}

func TestF81_AListingWithoutEndIsStopped(t *testing.T) {
	t.Parallel()
	p := listingOf(t, `while :; do echo '{"resource": "apps", "key": "a"}'; done`, nil)
	require.Equal(t, linesMax, p.most)
	p.most = 1000
	found, err := listed(t, p)
	require.Equal(t, 1000, found)
	require.EqualError(t, err, "sh: more than 1000 lines")
}
