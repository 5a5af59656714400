package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

const withoutURL = "database_url: is missing: set it in a config file (-c FILE, or ./reconciler.yaml), or set RECONCILER_DATABASE_URL, " +
	"such as \"postgres://user@host:5432/database\"\n"

func TestNothingIsTheHelp(t *testing.T) {
	t.Parallel()
	nothing, help := newPlace(t).run(t), newPlace(t).run(t, "--help")
	require.Equal(t, help, nothing)
	require.Zero(t, help.code)
	require.Contains(t, help.stdout, "Exit codes: 0 ok; 1 not converged, something differs, or the command failed; 2 wrong arguments or\n")
}

// misuses are command lines that end before anything is connected to, and what is said then.
var misuses = map[string]struct {
	args   []string
	stderr string
}{
	"NamesTheCommandThatIsMeant": {
		[]string{"statsu"}, "reconciler: reconciler has no command \"statsu\"\nhint: did you mean status?\n",
	},
	"NamesTheHelpWhereNothingIsNear": {
		[]string{"frobnicate", "--hard"}, "reconciler: reconciler has no flag --hard\nhint: see `reconciler --help`\n",
	},
	"NamesTheSubcommandThatIsMeant": {
		[]string{"migrate", "upp"}, "reconciler: reconciler migrate has no command \"upp\"\nhint: did you mean up?\n",
	},
	"ListsTheCommandsOfAGroup": {
		[]string{"migrate"}, "reconciler: reconciler migrate is not a command by itself\nhint: its commands are down, print, status, up\n",
	},
	"NamesTheFlagThatIsMeant": {
		[]string{"wait", "--tiemout", "3s"}, "reconciler: reconciler wait has no flag --tiemout\nhint: did you mean --timeout?\n",
	},
	"SaysThatAShorthandIsUnknown": {
		[]string{"wait", "-t", "3s"}, "reconciler: reconciler wait has no flag -t\nhint: see `reconciler wait --help`\n",
	},
	"SaysThatAFlagLacksItsValue": {
		[]string{"wait", "--timeout"}, "reconciler: flag needs an argument: --timeout\nhint: see `reconciler wait --help`\n",
	},
	"ReportsArgumentsAndConfigurationTogether": {
		[]string{"explain", "eu", "-o", "yaml"},
		"reconciler: 3 problems:\n  --output: must be table or json, not \"yaml\"\n" +
			"  reconciler explain takes TARGET RESOURCE KEY, and got 1 argument\n  " + withoutURL,
	},
	"ReportsEveryFlagOfOneCall": {
		[]string{"top", "--interval", "1ms", "now", "-o", "xml"},
		"reconciler: 4 problems:\n  --output: must be table or json, not \"xml\"\n  reconciler top takes no arguments, and got [\"now\"]\n" +
			"  --interval: must be 100ms at least, not 1ms\n  " + withoutURL,
	},
	"RefusesWhatIsNoNumberOfAnApply": {
		[]string{"apply", "show", "x"}, "reconciler: an apply has a number, and \"x\" is none\nhint: `reconciler apply list` shows them\n",
	},
	"SaysThatTheNumberOfAnApplyIsMissing": {
		[]string{"apply", "stop"}, "reconciler: 2 problems:\n  reconciler apply stop takes APPLY, and got 0 arguments\n  " + withoutURL,
	},
	"RefusesDurationsThatAreNone": {
		[]string{"wait", "--timeout", "soon"},
		"reconciler: 2 problems:\n  --timeout: \"soon\" is no duration: write a number with a unit, such as 500ms, 30s or 1h30m\n  " + withoutURL,
	},
	"RefusesNegativeDurations": {
		[]string{"wait", "--timeout=-3s"}, "reconciler: 2 problems:\n  --timeout: must not be negative, but is -3s\n  " + withoutURL,
	},
	"RefusesNumbersOutOfBounds": {
		[]string{"diff", "--limit", "0"},
		"reconciler: 2 problems:\n  --limit: must be a whole number from 1 to 100000, not \"0\"\n  " + withoutURL,
	},
	"RefusesListingsThatExcludeEachOther": {
		[]string{"status", "--objects", "--held"}, "reconciler: 2 problems:\n  --objects, --held: give one of them\n  " + withoutURL,
	},
	"RefusesFlagsThatMeanNothing": {
		[]string{"status", "--resource", "deployments", "--limit", "3"},
		"reconciler: 3 problems:\n  --resource needs one of --objects, --pending, --failing, --held, --drift\n" +
			"  --limit needs one of --objects, --pending, --failing, --held, --drift\n  " + withoutURL,
	},
	"RefusesABenchThatMeasuresNothing": {
		[]string{"bench", "--writers", "0", "--rounds", "all", "--length", "2m"},
		"reconciler: 4 problems:\n  --writers: must be a whole number from 1 to 256, not \"0\"\n" +
			"  --rounds: must be a whole number from 1 to 50, not \"all\"\n  --length: must be from 50ms to 1m, not 2m0s\n  " + withoutURL,
	},
	"RefusesATimeoutWithoutWait": {
		[]string{"sync", "--timeout", "3s"}, "reconciler: 2 problems:\n  --timeout needs --wait\n  " + withoutURL,
	},
	"RefusesADefinitionThatLacksEverything": {
		[]string{"track", "deployments", "--depends-on", "{"},
		"reconciler: 5 problems:\n  reconciler track takes RESOURCE RELATION, and got 1 argument\n" +
			"  --key is missing: name the column or columns of the key\n" +
			"  --target is missing: give an expression for the name of the target, such as a column\n" +
			"  --depends-on: is no JSON; write such as {\"workspaces\": {\"id\": \"workspace_id\"}}\n  " + withoutURL,
	},
	"RefusesAConfigForDev": {
		[]string{"dev", "-c", "x.yaml", "--example", "flet"},
		"reconciler: 2 problems:\n  --config: dev brings its own configuration; --example takes a directory with one\n" +
			"  --example: there is no example \"flet\": the examples are fleet, prometheus, edge, kubernetes, or a directory\nhint: see `reconciler dev --help`\n",
	},
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for name, test := range misuses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, result{code: 2, stderr: test.stderr}, newPlace(t).run(t, test.args...))
		})
	}
}

// leaves calls fn for every command that does something itself.
func leaves(fn func(cmd *cobra.Command)) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if !sub.HasSubCommands() || sub.HasFlags() { // agent is a command, and has some
				fn(sub)
			}
			walk(sub)
		}
	}
	walk((&app{registry: registry()}).root())
}

func TestEveryCommandRefusesArgumentsThatItDoesNotTake(t *testing.T) {
	t.Parallel()
	leaves(func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		r := newPlace(t).run(t, append(path, "a", "b", "c", "d")...)
		require.Equal(t, 2, r.code, cmd.CommandPath())
		require.Empty(t, r.stdout, cmd.CommandPath())
		require.Regexp(t, cmd.CommandPath()+` (takes .*, and got (\[?"|[1-4] arguments? too many: \[)|has no command "a")`, r.stderr)
	})
}

// The contract: -c and -o on every subcommand, after it too; a JSON file is a valid config.
func TestSharedFlagsStandAnywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := w.write(t, "other.json", `{"database_url": "`+w.db.URL+`", "targets": []}`)
	require.NoError(t, removeFile(w.dir, "reconciler.yaml"))
	want := result{stdout: "{\n  \"message\": \"eu was not paused\"\n}\n"}
	for _, args := range [][]string{
		{"-c", file, "-o", "json", "resume", "eu"},
		{"resume", "-c", file, "eu", "-o", "json"},
		{"resume", "eu", "--config=" + file, "--output=json"},
		{"resume", "eu", "-o=json", "-c=" + file},
	} {
		require.Equal(t, want, w.run(t, args...), args)
	}
	require.Equal(t, result{stdout: "the schema is up to date\n"}, w.run(t, "migrate", "up", "-c", file))

	w.environ = []string{"RECONCILER_DATABASE_URL=" + w.db.URL}
	require.Equal(t, want, w.run(t, "resume", "eu", "-o", "json"), "the environment alone is a configuration")
	leaves(func(cmd *cobra.Command) {
		require.NotNil(t, cmd.InheritedFlags().ShorthandLookup("c"), cmd.CommandPath())
		require.NotNil(t, cmd.InheritedFlags().ShorthandLookup("o"), cmd.CommandPath())
	})
}
