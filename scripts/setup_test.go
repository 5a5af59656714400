package scripts_test

import (
	"os"
	"os/exec"
	"path/filepath"
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

// The gate tests the minor version that users get.
func TestF188_SetupBringsTheInstalledServerUpToTheNewestMinor(t *testing.T) {
	t.Parallel()
	const (
		update  = "-o APT::Update::Error-Mode=any update -qq\n"
		upgrade = "install -y -qq --only-upgrade postgresql-15 postgresql-client-15\n"
		newer   = "setup: postgresql-15 15.18-0+deb12u1 is installed, and apt has 15.20-0+deb12u1\n" +
			"setup: postgresql-client-15 15.18-0+deb12u1 is installed, and apt has 15.20-0+deb12u1\n"
		upgrading = newer + "setup: upgrading Debian packages: postgresql-15 postgresql-client-15\n"
	)
	for name, tc := range map[string]struct {
		user, candidate, failing string // failing is the command of apt-get that fails
		printed, called          string
	}{
		"Root":                 {user: "0", candidate: "15.20-0+deb12u1", printed: upgrading, called: update + upgrade},
		"RootUpToDate":         {user: "0", candidate: "15.18-0+deb12u1", called: update},
		"RootWithoutCandidate": {user: "0", candidate: "(none)", called: update},
		"RootOffline": {
			user: "0", candidate: "15.18-0+deb12u1", failing: "update", called: update,
			printed: "setup: apt-get update failed: a newer minor version of PostgreSQL would not be noticed\n",
		},
		"RootWithoutDownload": {
			user: "0", candidate: "15.20-0+deb12u1", failing: "install", called: update + upgrade,
			printed: upgrading + "setup: that failed, and the tests use what is installed: E: no install\n",
		},
		"User": {
			user: "1000", candidate: "15.20-0+deb12u1",
			printed: newer + "setup: to test what users get: apt-get install --only-upgrade postgresql-15 postgresql-client-15\n",
		},
		"UserUpToDate": {user: "1000", candidate: "15.18-0+deb12u1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			calls := filepath.Join(dir, "calls")
			for program, script := range map[string]string{
				"id": "echo " + tc.user, "pg_config": "echo " + dir, "initdb": "", "postgres": "echo 'postgres (PostgreSQL) 15.18'",
				"go": "echo cc", "cc": "cat >/dev/null", "pgbouncer": "", "ps": "",
				"dpkg-query": `printf '%s\n' postgresql-15 postgresql-client-15 postgresql-16 postgresql-client-common`,
				"apt-cache": `shift; for name; do printf '%s:\n  Installed: 15.18-0+deb12u1\n  Candidate: ` + tc.candidate +
					`\n  Version table:\n' "$name"; done`,
				"apt-get": `echo "$*" >>` + calls + `; case " $* " in *" ` + tc.failing + ` "*) echo 'E: no ` + tc.failing + `'; exit 100;; esac`,
			} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/bash\n"+script+"\n"), 0o700))
			}
			setup := exec.CommandContext(t.Context(), "./setup.sh", "test", "15")
			setup.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			out, err := setup.CombinedOutput()
			require.NoError(t, err, string(out))
			require.Equal(t, tc.printed, string(out))
			called, _ := os.ReadFile(calls) // None is made without a call.
			require.Equal(t, tc.called, string(called))
		})
	}
}
