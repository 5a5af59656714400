package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

const docsFile = "../../docs/cli.md"

// block is a fenced block of the page: "```text help status" holds the help of a command, "```console" commands with
// what they print. One that begins with a line of happenings has a world of its own.
var block = regexp.MustCompile("(?s)```(text help [a-z ]+|console)\n(.*?)```\n")

// What differs from run to run, and how the page shows it.
var varying = []struct {
	pattern *regexp.Regexp
	shown   string
}{
	{regexp.MustCompile(`\d+ of \d+ connections`), "12 of 97 connections"},
	{regexp.MustCompile(`takes \d+ kB`), "takes 80 kB"},
	{regexp.MustCompile(`version \d+`), "version 12"},
	{regexp.MustCompile(`since 20[^-]*-\d\d-\d\d [0-9:]+\+00: upgrade`), "since 2026-01-02 03:05:00+00: upgrade"},
	{regexp.MustCompile(`requested by postgres at [-0-9]+ [0-9:]+\+00`), "requested by postgres at 2026-01-02 03:05:00+00"},
	{regexp.MustCompile(`go1\.\d+(\.\d+)?(-\w+)?, \w+/\w+`), "go1.26.0, linux/amd64"},
	{regexp.MustCompile(`paused by postgres`), "paused by bob"},
}

func TestDocsShowEveryCommandAsItIs(t *testing.T) {
	t.Parallel()
	before, err := os.ReadFile(docsFile)
	require.NoError(t, err)
	w := newWorld(t)
	w.write(t, "small.yaml", "database_url: postgres://reconciler:secret@db:5432/shop\ntargets:\n- {name: eu, driver: file, options: {dir: /srv/eu}, timeout: 10s}\n")
	w.environ = []string{"RECONCILER_LOG_LEVEL=debug"}
	after := block.ReplaceAllStringFunc(string(before), func(text string) string {
		parts := block.FindStringSubmatch(text)
		var body string
		if name, ok := strings.CutPrefix(parts[1], "text help "); ok {
			body = helpOf(t, name)
		} else {
			in := w
			if strings.HasPrefix(parts[2], "# ") {
				in = newWorld(t)
			}
			body = in.console(t, parts[2])
		}
		return "```" + parts[1] + "\n" + body + "```\n"
	})
	if *update {
		require.NoError(t, os.WriteFile(docsFile, []byte(after), 0o644))
		return
	}
	require.Equal(t, string(before), after, "docs/cli.md is out of date: go test ./cmd/reconciler -run TestDocs -update")
}

func TestDocsAndHelpListTheSameCommands(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(docsFile)
	require.NoError(t, err)
	var documented []string
	for _, match := range regexp.MustCompile("(?m)^```text help ([a-z ]+)$").FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, match[1])
	}
	var commands []string
	leaves(func(cmd *cobra.Command) {
		commands = append(commands, strings.TrimPrefix(cmd.CommandPath(), "reconciler "))
	})
	slices.Sort(commands)
	slices.Sort(documented)
	require.Equal(t, commands, documented)
}

// helpOf is a command's help without the flags that every command has.
func helpOf(t *testing.T, name string) string {
	t.Helper()
	r := newPlace(t).run(t, append(strings.Fields(name), "--help")...)
	require.Zero(t, r.code, r.stderr)
	text, _, _ := strings.Cut(r.stdout, "\nGlobal Flags:")
	text = regexp.MustCompile(`(?m)^  -h, --help .*\n`).ReplaceAllString(text, "")
	text = strings.TrimSuffix(text, "\nFlags:\n")
	require.Contains(t, text, "Usage:", name)
	return strings.TrimRight(text, "\n") + "\n"
}

// happenings are what processes and people do between the commands of a block. They stand there as comments.
var happenings = map[string]string{
	"# the transaction of release 42 has been committed": `BEGIN; SELECT reconciler.begin_apply('release 42'); UPDATE deployments SET image = 'app:2'; COMMIT;
		SELECT reconciler.open_apply(l.owner, l.term, 1, 11, 1000) FROM reconciler.leases l; UPDATE reconciler.applies SET created_at = '2026-01-02 03:04:05+00'`,
	"# ap has all of it": claimTasks("ap") + settleDone("ap", ""),
	"# eu does not take one of its objects": claimTasks("eu") + settleDone("eu", "3") + `;
		SELECT reconciler.settle_tasks(t.id, t.owner, t.term, '{2}', ARRAY[r.id], '{3}', '{failed}', '{HTTP 422 Unprocessable Entity}', '{spec}') FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'eu'`,
}

func claimTasks(target string) string {
	return fmt.Sprintf("SELECT c.* FROM reconciler.targets t, reconciler.claim_operations(t.id, t.owner, t.term, '30 s') AS c WHERE t.name = '%s'; ", target)
}

// settleDone completes what an apply has to do in a target, but for one object.
func settleDone(target, but string) string {
	return fmt.Sprintf(`SELECT reconciler.settle_tasks(t.id, t.owner, t.term, array_agg(k.operation_id), array_agg(k.resource_id), array_agg(k.key), array_agg('done'::text), array_agg(''::text), array_agg('spec'::bytea))
		FROM reconciler.targets t JOIN reconciler.tasks k ON k.target_id = t.id WHERE t.name = '%s' AND k.key <> '%s' GROUP BY t.id`, target, but)
}

// console runs the commands of a block and returns it with what they print now.
func (w *world) console(t *testing.T, body string) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(body) {
		if sql, ok := happenings[strings.TrimRight(line, "\n")]; ok {
			w.db.Exec(t, sql)
			out.WriteString(line)
			continue
		}
		command, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "$ ")
		if !ok {
			continue
		}
		w.db.Exec(t, "UPDATE reconciler.heartbeats SET at = clock_timestamp()") // of the process that the database shows as running
		fmt.Fprintf(&out, "$ %s\n%s", command, w.shell(t, command))
	}
	return out.String()
}

// shell runs one command line as a shell would, "; echo $?" included.
func (w *world) shell(t *testing.T, line string) string {
	t.Helper()
	command, echo := strings.CutSuffix(line, "; echo $?")
	words := shellWords(command)
	switch words[0] {
	case "reconciler":
		var out bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &out, environ: w.environ, dir: w.dir, registry: registry()}
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "/etc/reconciler", w.dir)
		}
		code := a.execute(t.Context(), words[1:])
		if echo {
			fmt.Fprintln(&out, code)
		}
		text := w.hide(out.String())
		for _, v := range varying {
			text = v.pattern.ReplaceAllString(text, v.shown)
		}
		return text
	case "psql":
		require.Equal(t, "-c", words[1], line)
		tag, err := w.db.Pool.Exec(t.Context(), words[2])
		require.NoError(t, err)
		return tag.String() + "\n"
	case "rm":
		require.NoError(t, os.Remove(strings.ReplaceAll(words[1], "/etc/reconciler", w.dir)))
		return ""
	}
	require.FailNow(t, "no such command", line)
	return ""
}

var shellWord = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)

func shellWords(line string) []string {
	words := shellWord.FindAllString(line, -1)
	for i, word := range words {
		if strings.HasPrefix(word, "'") || strings.HasPrefix(word, `"`) {
			words[i] = word[1 : len(word)-1]
		}
	}
	return words
}
