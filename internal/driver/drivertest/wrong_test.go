//go:build long

package drivertest_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// A suite that passes everything is worth nothing: each rule is broken once, and the suite must see it.
func TestExerciseFailsADriverThatBreaksARule(t *testing.T) {
	t.Parallel()

	for _, wrong := range []string{
		"apply is not idempotent", "apply does not overwrite", "done with an error", "secrets are told", "errors are binary",
		"large specs are cut", "numbers are floats", "revision goes before term", "hostile names are refused",
		"keys are trimmed", "keys are cut", "resources are cleaned", "resources are ignored",
		"delete of absent fails", "delete does nothing", "delete takes prefixes",
		"the context is ignored", "cut calls block the object", "cut calls open the circuit",
		"list forgets hostile keys", "list mixes resources", "a cut list looks complete", "list hashes another text",
		"list matches everything", "list yields twice", "a batch skips its last object", "a batch loses outcomes",
		"check fails", "close fails",
		"lost memory blocks the object", "lost memory leaves the object", "old memory is trusted", "too much is remembered",
		"secrets are remembered", "memory is never brought up to date", "memory is one for all specs",
		"a watch names nothing", "a watch forgets hostile keys", "a watch mixes resources", "a watch outlives its context",
		"a watch ends without an error", "a watch ends by itself", "a watch sees only what was there", "a watch works once",
		"an old confirmation counts", "an old confirmation counts later", "deletes do not wait", "looking confirms", "waiting names no pause", "all are confirmed at once",
		"absent is healthy", "failed is healthy", "health is one for all objects", "health has an unknown state", "health has no reason", "health has a long reason",
		"health of cut calls is healthy", "secrets are in the health", "asking makes objects", "applied is unhealthy",
		"a diff applies", "a diff deletes", "a diff takes absent objects for equal", "a diff shows the whole object", "a diff remembers what was applied",
		"a diff shows equal fields", "a diff shows secrets", "a diff of a delete is empty", "a diff deletes what is absent", "cut diffs are empty",
		"a diff of a target that is away is answered from memory", "a diff that failed has changes",
		"what is guarded goes", "what is guarded goes before it is approved", "what is guarded stays without a word", "to ask once is enough",
		"an approval counts for nothing",
	} {
		t.Run(wrong, func(t *testing.T) {
			t.Parallel()

			suite := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestExercise(Keeping|Waiting|Reporting|Diffing|Guarding)?$", "-test.failfast")
			suite.Env = append(os.Environ(), wrongDriver+"="+wrong)
			output, err := suite.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "the suite passes a driver of which %s", wrong)
			require.Equal(t, 1, exit.ExitCode())
			require.Contains(t, string(output), "--- FAIL: TestExercise")
			require.NotContains(t, string(output), memorySecret)
		})
	}
}
