package main

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// argumentsSQL lists the arguments of a function that callers give.
const argumentsSQL = `SELECT a.name, format_type(a.type, NULL) AS type
	FROM pg_proc p, unnest(p.proargnames, coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes) WITH ORDINALITY AS a(name, type, mode, n)
	WHERE p.oid = to_regproc('reconciler.' || $1) AND coalesce(a.mode, 'i') = 'i' ORDER BY a.n`

type sqlArgument struct{ Name, Type string }

func argumentsOf(t *testing.T, db *pgtest.DB, function string) []sqlArgument {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), argumentsSQL, function)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sqlArgument])
	require.NoError(t, err)
	require.NotEmpty(t, found, function)
	return found
}

// F137: `reconciler track` did not know protect, and reset it.
func TestF137_TrackHasEveryArgumentOfTheFunction(t *testing.T) {
	t.Parallel()
	var known []sqlArgument
	for _, a := range cli.TrackArguments {
		known = append(known, sqlArgument{a.Name, a.Type})
	}
	require.Equal(t, argumentsOf(t, pgtest.New(t), "track"), known)
}

// F137, siblings: a command that stands for a function takes each of the function's arguments, positional (in capitals
// in Use) or as a flag of the same name.
func TestF137_CommandsTakeEveryArgumentOfTheirFunction(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	commands := map[string]*cobra.Command{}
	leaves(func(cmd *cobra.Command) { commands[strings.TrimPrefix(cmd.CommandPath(), "reconciler ")] = cmd })
	for command, function := range map[string]string{
		"track": "track", "untrack": "untrack", "pause": "pause", "resume": "resume", "approve": "approve", "retry": "retry", "release": "release",
		"acknowledge": "acknowledge", "sync": "resync", "explain": "explain", "grant": `"grant"`, "wait": "wait", "apply resync": "begin_resync",
		"apply pause": "apply_pause", "apply stop": "apply_stop", "apply start": "apply_start", "apply release": "apply_release",
		"apply cancel": "apply_cancel", "apply retry": "apply_retry", "apply wait": "apply_wait",
	} {
		cmd := commands[command]
		require.NotNil(t, cmd, command)
		for _, a := range argumentsOf(t, db, function) {
			require.True(t, takes(cmd, a.Name), "reconciler %s takes no %s, which reconciler.%s() has", command, a.Name, function)
		}
	}
}

// takes reports whether a command takes an argument. A list of plural name is a flag that may be given again.
func takes(cmd *cobra.Command, argument string) bool {
	name := map[string]string{"targets": "target", "keys": "key", "role_name": "role", "kind": "viewer|operator|runtime|definer"}[argument]
	if name == "" {
		name = strings.ReplaceAll(argument, "_", "-")
	}
	words := strings.FieldsFunc(cmd.Use, func(r rune) bool { return strings.ContainsRune(" []", r) })
	for _, word := range words[1:] {
		if strings.EqualFold(word, name) {
			return true
		}
	}
	return cmd.Flags().Lookup(name) != nil
}
