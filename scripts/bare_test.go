//go:build long

package scripts_test

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const bareImage = "reconciler-test/bare:bookworm" // of build-images.sh

// The commands of README.md work as root on a Debian system that has git, make, certificates and Go, and nothing else.
func TestReadmeCommandsOnABareSystem(t *testing.T) {
	output(t, "./build-images.sh", "bare")
	readme := read(t, "../README.md")
	for _, test := range []struct{ name, shown, typed, verdict string }{
		{"Demo", "\nmake demo ", "make demo", "VERDICT: ok: "},
		{"Test", "\nmake test ", "make test PKG=./internal/migrate", "\nDONE "},
	} {
		t.Run(test.name, func(t *testing.T) { // one after the other: each builds everything
			require.Contains(t, readme, test.shown)
			require.Contains(t, onBareSystem(t, test.typed), test.verdict)
		})
	}
}

// onBareSystem runs a command in a clone of this repository, in a container that is removed afterwards.
func onBareSystem(t *testing.T, command string) string {
	t.Helper()
	tree, err := filepath.Abs("..")
	require.NoError(t, err)
	goroot := strings.TrimSpace(output(t, "go", "env", "GOROOT"))
	args := []string{
		"run", "--rm", "--init", "--network=host", "--shm-size=1g", "-v", goroot + ":/usr/local/go:ro", "-v", tree + ":/tree:ro",
		// The proxy of modules may have a certificate that only this machine trusts.
		"-v", cmp.Or(os.Getenv("SSL_CERT_FILE"), "/etc/ssl/certs/ca-certificates.crt") + ":/etc/ssl/certs/ca-certificates.crt:ro",
		"-e", "PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "-e", "GOTOOLCHAIN=local",
	}
	for _, name := range []string{"GOPROXY", "GOFLAGS", "GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GOSUMDB"} {
		args = append(args, "-e", name+"="+strings.TrimSpace(output(t, "go", "env", name)))
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} {
		args = append(args, "-e", name) // as it is here, if it is set
	}
	const clone = "git config --global --add safe.directory '*' && git clone -q /tree /reconciler && cd /reconciler && "
	return output(t, "docker", append(args, bareImage, "bash", "-c", clone+command)...)
}

// output runs a command that must succeed, and returns what it printed.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s:\n%s", name, out)
	return string(out)
}
