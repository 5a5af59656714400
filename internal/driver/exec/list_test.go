package exec_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func list(t *testing.T, ctx context.Context, script string, args ...any) (found []driver.Listed, last error) {
	t.Helper()
	d := open(t, driver.Options{"command": shell("exit 0"), "list_command": shell(script, args...)})
	for listed, err := range d.(driver.Lister).List(ctx, []string{"apps"}) {
		if err != nil {
			last = err
			continue
		}
		require.NoError(t, last, "List went on after an error")
		found = append(found, listed)
	}
	return found, last
}

func TestListReadsAnObjectFromEachLine(t *testing.T) {
	t.Parallel()

	hash := driver.HashSpec([]byte(`{}`))
	found, err := list(t, t.Context(), `printf '%s\n' '{"resource": "apps", "key": "a\n\u00e9", "hash": "`+hash.String()+`", "more": 1}'; printf '{"resource": "apps", "key": ""}'`)
	require.NoError(t, err)
	require.Equal(t, []driver.Listed{
		{Resource: "apps", Key: "a\né", Hashes: []driver.Hash{hash}, Unmarked: true}, {Resource: "apps", Key: "", Unmarked: true},
	}, found)

	found, err = list(t, t.Context(), `exit 0`)
	require.NoError(t, err)
	require.Empty(t, found)
}

func TestTheListCommandReadsWhatToList(t *testing.T) {
	t.Parallel()

	out := filepath.Join(t.TempDir(), "out")
	_, err := list(t, t.Context(), `cat > "$1"`, out)
	require.NoError(t, err)
	require.Equal(t, `{"action":"list","target":"test"}`+"\n", read(t, out))
}

// I5: what is not a whole listing must not look like one.
func TestAListingThatWentWrongIsAnError(t *testing.T) {
	t.Parallel()

	const a = `echo '{"resource": "apps", "key": "a"}'; `
	for script, c := range map[string]struct {
		found int
		text  string
	}{
		a + `echo 'no access' >&2; exit 1`:                          {1, "sh: exit status 1: no access"},
		a + `kill -KILL $$`:                                         {1, "sh: killed by a signal (killed)"},
		a + `echo nonsense; ` + a:                                   {1, `sh: a line is not {"resource": .., "key": .., "hash": ..}: nonsense`},
		a + `echo; ` + a:                                            {1, `sh: a line is not {"resource": .., "key": .., "hash": ..}: `},
		a + `echo '{"key": "b"}'`:                                   {1, `sh: a line is not {"resource": .., "key": .., "hash": ..}: {"key": "b"}`},
		a + `echo '{"resource": "", "key": "b"}'`:                   {1, `sh: a line is not {"resource": .., "key": .., "hash": ..}: {"resource": "", "key": "b"}`},
		a + `echo '{"hash": "00"}'`:                                 {1, `sh: a line is not {"resource": .., "key": .., "hash": ..}: {"hash": "00"}`},
		a + `echo '{"resource": "apps", "key": "b", "hash": "00"}'`: {1, `sh: a hash is not 32 hexadecimal digits: {"resource": "apps", "key": "b", "hash": "00"}`},
		`head -c 2000000 /dev/zero | tr '\0' x; ` + a:               {0, "sh: a line of more than 1048576 bytes"},
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()

			found, err := list(t, t.Context(), script)
			require.Len(t, found, c.found)
			require.EqualError(t, err, c.text)
		})
	}
}

func TestAListingEndsWithItsConsumerOrContext(t *testing.T) {
	t.Parallel()

	// It lists for ever, and what it has open tells when it is gone.
	const endless = `exec 9>"$1"; while :; do echo '{"resource": "apps", "key": "a"}'; done`
	start := func(t *testing.T) (fifo string, gone chan error) {
		fifo = filepath.Join(t.TempDir(), "fifo")
		require.NoError(t, syscall.Mkfifo(fifo, 0o600))
		gone = make(chan error, 1)
		go func() {
			pipe, err := os.Open(fifo)
			if err == nil {
				_, err = io.ReadAll(pipe)
				err = errors.Join(err, pipe.Close())
			}
			gone <- err
		}()
		return fifo, gone
	}
	t.Run("Consumer", func(t *testing.T) {
		t.Parallel()

		fifo, gone := start(t)
		d := open(t, driver.Options{"command": shell("exit 0"), "list_command": shell(endless, fifo)})
		for listed, err := range d.(driver.Lister).List(t.Context(), []string{"apps"}) {
			require.NoError(t, err)
			require.Equal(t, "a", listed.Key)
			break
		}
		require.NoError(t, <-gone)
	})
	t.Run("Context", func(t *testing.T) {
		t.Parallel()

		fifo, gone := start(t)
		d := open(t, driver.Options{"command": shell("exit 0"), "list_command": shell(endless, fifo)})
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		var last error
		for _, err := range d.(driver.Lister).List(ctx, []string{"apps"}) {
			cancel(errors.New("the target was handed over"))
			last = err
		}
		require.EqualError(t, last, "sh: the command was stopped: the target was handed over")
		require.NoError(t, <-gone)
	})
}

// I9.
func TestAListingIsReadWhileTheProgramWrites(t *testing.T) {
	t.Parallel()

	found, err := list(t, t.Context(), `i=0; while [ $i -lt 3000 ]; do echo "{\"resource\": \"apps\", \"key\": \"`+strings.Repeat("k", 100)+`$i\"}"; i=$((i+1)); done`)
	require.NoError(t, err)
	require.Len(t, found, 3000)
}
