// Command peers measures reconciler against other ways to get changes out of PostgreSQL, on the same work and the same
// server. README.md says what is compared and how. It needs a PostgreSQL of its own, with fsync on and wal_level=logical:
//
//	go run . -url postgres://postgres@localhost:5432/postgres -out .
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"time"

	"github.com/pgreconciler/reconciler/internal/measure"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l := &lab{}
	flag.StringVar(&l.admin, "url", os.Getenv("RECONCILER_BENCH_URL"), "PostgreSQL to measure on; a database is created there and dropped")
	flag.IntVar(&l.rounds, "rounds", 3, "rounds, each with all peers one after the other")
	flag.DurationVar(&l.length, "length", 5*time.Second, "length of one round of commits")
	flag.Float64Var(&l.scale, "scale", 1, "what numbers of rows and changes are multiplied with")
	flag.DurationVar(&l.hold, "hold", 3*time.Second, "how long the open transaction is open")
	flag.DurationVar(&l.patience, "patience", 20*time.Second, "how long nothing may be delivered before what has not come counts as never delivered")
	only := flag.String("only", ".", "regular expression of the peers to measure")
	out := flag.String("out", "", "directory for peers.md and peers.json; none: the table is only printed")
	quick := flag.Bool("quick", false, "see in a minute that everything works and every peer delivers everything; the figures mean nothing")
	flag.Parse()
	chosen, err := regexp.Compile(*only)
	if l.admin == "" || l.rounds < 1 || l.scale <= 0 || err != nil {
		fmt.Fprintln(os.Stderr, "peers: -url is missing, -rounds or -scale is not positive, or -only is no regular expression")
		return 2
	}
	if *quick {
		l.rounds, l.length, l.scale, l.hold = 1, 100*time.Millisecond, .001, 300*time.Millisecond
	}
	records, err := l.measure(ctx, chosen, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		return 1
	}
	_, _ = fmt.Fprint(os.Stdout, table(l.columns(), records))
	if *quick {
		return complete(records)
	}
	return 0
}

// complete is the exit code of a quick run: figures may lack deliveries, a check may not.
func complete(records []*record) int {
	code := 0
	for _, r := range records {
		if r.Missing > 0 || r.Committed == 0 {
			fmt.Fprintf(os.Stderr, "peers: %s: %d of %d never delivered\n", r.Peer, r.Missing, r.Committed)
			code = 1
		}
	}
	return code
}

// measure goes through all chosen peers, round by round. What whole rounds have given is written after each of them.
func (l *lab) measure(ctx context.Context, chosen *regexp.Regexp, out string) (records []*record, err error) {
	where := surroundings{
		At: time.Now().UTC(), Commit: measure.Commit(ctx), Go: runtime.Version(), CPUs: runtime.NumCPU(), CPU: measure.CPUModel(),
		Length: l.length.String(), Scale: l.scale, Versions: versions(),
	}
	if where.PostgreSQL, err = l.check(ctx); err != nil {
		return nil, err
	}
	quietKine()
	defer l.clean()
	makers := map[*record]func() peer{}
	for _, mk := range peers {
		if a := mk().about(); chosen.MatchString(a.name) {
			r := newRecord(a)
			records = append(records, r)
			makers[r] = mk
		}
	}
	for range l.rounds {
		for _, r := range records {
			began := time.Now()
			if err := l.visit(ctx, makers[r], r); err != nil {
				return nil, fmt.Errorf("%s: %w", r.Peer, err)
			}
			fmt.Fprintf(os.Stderr, "%s took %s\n", r.Peer, time.Since(began).Round(time.Second))
		}
		where.Rounds++
		if out != "" {
			if err := l.write(out, where, records); err != nil {
				return nil, err
			}
		}
	}
	return records, nil
}
