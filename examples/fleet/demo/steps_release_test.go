package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReleaseWentOutOnlyIfItFailedAndWasTriedAgain(t *testing.T) {
	require.NoError(t, wentOut("completed", "open running failed retry running completed"))
	for state, logs := range map[string][]string{
		"completed": {"open running completed", "open running failed completed", "open running retry completed", "", "open running failed retry running"},
		"failed":    {"open running failed", "open running failed retry running failed", "open running failed retry completed"},
	} {
		for _, log := range logs {
			require.ErrorContains(t, wentOut(state, log), "the release is "+state+", and its log says: "+log+"; want")
		}
	}
}
