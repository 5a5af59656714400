package scripts_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSetupRefusesWhatIsNoVersion(t *testing.T) {
	for _, version := range []string{"latest", "13", "15.2", "015", "-1", "15 17", "a[$(echo 15)]"} {
		out, err := exec.CommandContext(t.Context(), "./setup.sh", "test", version).CombinedOutput()
		require.Error(t, err, version)
		require.Equal(t, "setup: RECONCILER_TEST_PG="+version+": want a major version of PostgreSQL from 14 on, such as 15\n", string(out))
	}
}
