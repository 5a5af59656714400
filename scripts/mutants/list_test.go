package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Each mutant still finds the text that it changes, and a test that is to notice.
func TestMutantsFitTheTree(t *testing.T) {
	t.Parallel()
	require.NoError(t, fit("../..", mutants))
}
