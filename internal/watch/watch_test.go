package watch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A watcher gets the snapshot, then what follows.
func TestSnapshotIsFollowedByChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`{"n": 1}`, "a", "b", "c")
	b.remove("b")
	b.complete()
	f := b.follow()
	require.Equal(t, []string{`a={"n": 1}`, `c={"n": 1}`, "end_of_snapshot"}, f.until("end_of_snapshot"))
	b.apply(`{"n": 2}`, "c", "d")
	b.remove("a")
	require.Equal(t, []string{`c={"n": 2}`, `d={"n": 2}`, "a=-"}, f.until("a=-"))
	require.Equal(t, "application/x-ndjson", f.response.Header.Get("Content-Type"))
	require.Equal(t, "no-store", f.response.Header.Get("Cache-Control"))
	require.Equal(t, "an-installation", f.response.Header.Get("Reconciler-Installation"))

	require.Equal(t, []string{`c={"n": 2}`, `d={"n": 2}`, "end_of_snapshot"}, b.follow("watch", "").rest(), "without watch the response ends")
}

// S3: a publisher that has not published everything is not an empty world.
func TestNoSnapshotEndsBeforeTheStreamIsComplete(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	status, text := b.get(objects)
	require.Equal(t, 503, status)
	require.Equal(t, `{"error":"target \"eu\" is not complete: its first full sync is under way"}`+"\n", text)
	f := b.follow()
	require.Equal(t, []string{"waiting incomplete"}, f.until("waiting incomplete"))
	b.apply(`1`, "b")
	b.complete()
	require.Equal(t, []string{"a=1", "b=1", "end_of_snapshot"}, f.until("end_of_snapshot"))
}

// S3: a snapshot has a keep for each wanted object that is not published.
func TestUnsettledObjectsAreKept(t *testing.T) {
	t.Parallel()
	b := setup(t, small(2, 1<<20))
	b.apply(`1`, "a", "d")
	b.unsettled("b", "blocked", "")
	b.unsettled("c", "held", "pause")
	b.unsettled("d", "failing", "")
	b.unsettled("e", "pending", "")
	b.unsettled("x", "held", "guard")
	b.db.Exec(t, `UPDATE reconciler.ledger SET wanted = false WHERE key = 'x'`)
	b.complete()
	require.Equal(t, []string{"a=1", "d=1", "keep b blocked", "keep c pause", "keep e pending", "end_of_snapshot"}, b.follow("watch", "").rest())
	require.Equal(t, []string{"d=1", "end_of_snapshot"}, b.follow("watch", "", "resource", "app", "prefix", "d").rest())
	require.Equal(t, []string{"keep c pause", "end_of_snapshot"}, b.follow("watch", "", "resource", "app", "prefix", "c").rest())
}

// S3: a stream that was released is closed, and not empty.
func TestReleasedStreamIsClosed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.complete()
	f := b.follow()
	f.until("end_of_snapshot")
	b.db.Exec(t, `DELETE FROM reconciler.streams`)
	b.hub.Wake()
	require.Equal(t, []string{"closed released"}, f.rest())
	status, text := b.get(objects)
	require.Equal(t, 404, status)
	require.Contains(t, text, `target \"eu\" has no stream`)
}

// S5: a response may be cut at any frame, also inside a snapshot, and resumed at its newest bookmark.
func TestResumeAtEveryBookmark(t *testing.T) {
	t.Parallel()
	b := setup(t, small(2, 1<<20))
	b.apply(`1`, "a", "b", "c", "d", "e")
	b.complete()
	whole := []string{"a=1", "b=1", "c=1", "d=1", "e=1"}
	for cut := range 10 { // five objects in pages of two have 5 + 3 frames and the end
		f := b.follow()
		var seen []string
		for range cut {
			if next, ok := f.next(); ok && next.Type == "upsert" {
				seen = append(seen, next.String())
			}
		}
		f.close()
		if f.bookmark == "" {
			continue
		}
		again := b.follow("since", f.bookmark)
		if cut < 9 {
			rest := again.until("end_of_snapshot")
			if cut == 3 {
				require.Equal(t, "c=1", rest[0], "a page that was sent with its checkpoint is not sent again")
			}
			for _, text := range rest {
				if !slices.Contains(seen, text) && text != "end_of_snapshot" {
					seen = append(seen, text)
				}
			}
		}
		again.close()
		require.Equal(t, whole, seen, "cut after %d frames", cut)
	}
}

// S5: a watcher that comes back gets what it missed, and a checkpoint at once.
func TestResumeGetsWhatItMissed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a", "b")
	b.complete()
	f := b.follow()
	f.until("end_of_snapshot")
	f.close()
	again := b.follow("since", f.bookmark)
	first, ok := again.next()
	require.True(t, ok)
	require.Equal(t, "checkpoint", first.Type)
	require.NotNil(t, first.Revision)
	again.close()
	b.apply(`2`, "b")
	b.remove("a")
	third := b.follow("since", again.bookmark)
	require.Equal(t, []string{"b=2", "a=-", "checkpoint"}, third.until("checkpoint"))
	b.apply(`3`, "b")
	require.Equal(t, []string{"b=3"}, third.until("b=3"))
	require.Equal(t, []string{"a=-", "b=3"}, b.follow("since", again.bookmark, "watch", "").rest(), "the table keeps the newest version alone")
}

// S5: a bookmark that means nothing any more is answered with a reset and a snapshot.
func TestBookmarksThatMeanNothingAreReset(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a", "b")
	b.complete()
	begin := func() string {
		f := b.follow()
		f.until("end_of_snapshot")
		f.close()
		return f.bookmark
	}
	resumed := func(bookmark string, params ...string) []string {
		return b.follow(append(params, "since", bookmark, "watch", "")...).rest()
	}
	b.follow() // so that the hub does not forget the stream
	// later changes the stream, and waits until the hub has seen it.
	later := func(sql string, args ...any) {
		t.Helper()
		era := b.hub.Era("eu")
		b.db.Exec(t, sql, args...)
		b.hub.Wake()
		require.Eventually(t, func() bool { return b.hub.Era("eu") > era }, deadline, time.Millisecond)
	}
	old := begin()
	require.Equal(t, []string{"reset scope", "a=1", "end_of_snapshot"}, resumed(old, "resource", "app", "prefix", "a"))

	b.remove("b")
	b.db.Exec(t, `UPDATE reconciler.published SET at = at - interval '2 days' WHERE spec IS NULL`)
	b.query(`SELECT reconciler.forget_tombstones(10)`, new(bool))
	require.Equal(t, []string{"reset expired", "a=1", "end_of_snapshot"}, resumed(old))
	require.Empty(t, resumed(begin()), "one that has read the tombstone misses nothing, though its version is gone")

	ahead := begin()
	later(`UPDATE reconciler.streams SET floor = 0; UPDATE reconciler.published SET version = 1 WHERE key = 'a'; DELETE FROM reconciler.published WHERE key <> 'a'`)
	require.Equal(t, []string{"reset restored", "a=1", "end_of_snapshot"}, resumed(ahead), "a version that a restore has lost, which no process has noticed")

	now := begin()
	later(`SELECT reconciler.start_over('restored'); UPDATE reconciler.streams SET complete = true`)
	require.Equal(t, []string{"reset restored", "a=1", "end_of_snapshot"}, resumed(now))

	now = begin()
	later(`UPDATE reconciler.streams SET id = gen_random_uuid()`)
	require.Equal(t, []string{"reset unknown", "a=1", "end_of_snapshot"}, resumed(now))
}

// A restore under a watcher: it keeps what it has until the new epoch is complete.
func TestWatchersBeginAgainAfterARestore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.complete()
	f := b.follow()
	f.until("end_of_snapshot")
	b.apply(`1`, "b")
	b.apply(`1`, "lost")
	f.until("lost=1")
	b.db.Exec(t, `DELETE FROM reconciler.published WHERE key = 'lost'; SELECT reconciler.start_over('restored')`)
	b.hub.Wake()
	require.Equal(t, []string{"reset restored", "waiting incomplete"}, f.until("waiting incomplete"))
	b.db.Exec(t, `UPDATE reconciler.streams SET complete = true`)
	b.hub.Wake()
	require.Equal(t, []string{"a=1", "b=1", "end_of_snapshot"}, f.until("end_of_snapshot"))
	b.db.Exec(t, `INSERT INTO reconciler.published (target_id, resource, key, version, revision, spec, hash, bytes)
		SELECT target_id, resource, 'c', version + 5, revision, spec, hash, bytes FROM reconciler.published WHERE key = 'b'`)
	b.hub.Wake()
	require.Equal(t, []string{"c=1"}, f.until("c=1"), "and nothing of before the restore")
}

// S6: a watcher that does not read delays no other watcher, has nothing kept for it, and gets what it missed from the table.
func TestStuckWatcherReadsTheTable(t *testing.T) {
	t.Parallel()
	b := setup(t, small(50, 1000)) // fewer bytes than one change
	b.complete()
	stuck, live := b.follow(), b.follow()
	live.until("end_of_snapshot")
	const changes, size = 80, 200_000 // more than the kernel takes for a connection
	var want []string
	for i := range changes {
		key := fmt.Sprintf("k%03d", i)
		b.apply(`"`+strings.Repeat("x", size)+`"`, key)
		want = append(want, key)
		for {
			if next, ok := live.next(); !ok || next.Key == key {
				break
			}
		}
	}
	b.apply(`1`, "last")
	live.until("last=1")
	var got []string
	for {
		next, ok := stuck.next()
		require.True(t, ok)
		if next.Key == "last" {
			break
		}
		if next.Type == "upsert" && !slices.Contains(got, next.Key) {
			got = append(got, next.Key)
		}
	}
	require.Equal(t, want, got)
}

// S1, S2: whatever watchers read from, list, table or snapshot: versions of an object never go back, and in the end each has what
// is published.
func TestVersionsNeverGoBack(t *testing.T) {
	t.Parallel()
	b := setup(t, small(7, 4000)) // a list of few frames: most watchers read the table again and again
	b.complete()
	const watchers, keys = 40, 60
	b.apply(`0`, "last")
	var following sync.WaitGroup
	for i := range watchers {
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		following.Go(func() { b.followAndCompare(rng) })
	}
	rng := rand.New(rand.NewPCG(2, 2))
	for n := range 400 {
		key := "k" + strconv.Itoa(rng.IntN(keys))
		if rng.IntN(4) == 0 {
			b.remove(key)
		} else {
			b.apply(strconv.Itoa(n), key, "k"+strconv.Itoa(rng.IntN(keys))+"x")
		}
	}
	b.apply(`"end"`, "last")
	following.Wait()
}

// followAndCompare follows with cuts at random until it has seen the last change, and compares with what is published.
func (b *bed) followAndCompare(rng *rand.Rand) {
	versions, have := map[string]int64{}, map[string]string{}
	bookmark, named := "", map[string]bool{}
	paging := true
	for paging || have["last"] != `"end"` {
		var params []string
		if bookmark != "" {
			params = []string{"since", bookmark}
		} else {
			named, paging = map[string]bool{}, true
		}
		f := b.follow(params...)
		for cut := 1 + rng.IntN(60); cut > 0 && (paging || have["last"] != `"end"`); cut-- {
			next, ok := f.next()
			if !ok {
				break
			}
			switch next.Type {
			case "upsert", "delete":
				if next.Version < versions[next.Key] {
					b.t.Errorf("%s goes back from version %d to %d", next.Key, versions[next.Key], next.Version)
				}
				versions[next.Key] = next.Version
				delete(have, next.Key)
				if next.Type == "upsert" {
					have[next.Key], named[next.Key] = string(next.Spec), true
				}
			case "reset":
				b.t.Errorf("reset %s", next.Reason)
			case "end_of_snapshot":
				paging = false
				for key := range have {
					if !named[key] {
						delete(have, key)
					}
				}
			}
		}
		f.close()
		bookmark = f.bookmark
		if rng.IntN(5) == 0 {
			bookmark = ""
		}
	}
	var published string
	if err := b.db.Pool.QueryRow(context.Background(), `SELECT string_agg(key || '=' || spec::text, ' ' ORDER BY key || '=' || spec::text COLLATE "C") FROM reconciler.published WHERE spec IS NOT NULL`).Scan(&published); err != nil {
		b.t.Error(err)
	}
	var all []string
	for key, spec := range have {
		all = append(all, key+"="+spec)
	}
	slices.Sort(all)
	if got := fmt.Sprint(all); got != "["+published+"]" {
		b.t.Errorf("a watcher has %d bytes of text, published is %d", len(got), len(published))
	}
}

// S6: watchers that are gone leave no group and no goroutine.
func TestWatchersThatComeAndGoLeaveNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.complete()
	for i := range 300 {
		f := b.follow("resource", "app", "prefix", strconv.Itoa(i%50))
		if i%2 == 0 {
			f.until("end_of_snapshot")
		}
		f.close()
	}
	require.Eventually(t, func() bool { _, groups, watchers := b.hub.Watched(); return groups == 0 && watchers == 0 }, deadline, 10*time.Millisecond)
}

// A process that stops closes each response with a frame.
func TestDrainingClosesResponses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.complete()
	f := b.follow()
	f.until("end_of_snapshot")
	b.drain()
	require.Equal(t, []string{"closed draining"}, f.rest())
}

// While the database does not answer, watchers get `waiting`, and go on afterwards.
func TestDatabaseThatDoesNotAnswerIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.complete()
	live := b.follow()
	live.until("end_of_snapshot")
	b.db.Exec(t, `ALTER TABLE reconciler.published RENAME TO gone`)
	f := b.follow()
	require.Equal(t, []string{"waiting database"}, f.until("waiting database"))
	b.db.Exec(t, `ALTER TABLE reconciler.gone RENAME TO published`)
	require.Contains(t, f.until("end_of_snapshot"), "a=1")
	b.apply(`2`, "a")
	require.Equal(t, []string{"a=2"}, live.until("a=2"))
}

// Long polling: the response ends by itself, at a bookmark.
func TestTimeoutEndsAResponse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.complete()
	f := b.follow("timeout", "1s")
	require.Equal(t, []string{"end_of_snapshot", "closed timeout"}, f.rest())
	require.NotEmpty(t, f.bookmark)
}

// The view stream_watchers has a row for each process with watchers.
func TestWatchersAreWrittenDown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.complete()
	f := b.follow()
	f.until("end_of_snapshot")
	require.Eventually(t, func() bool {
		var text string
		err := b.db.Pool.QueryRow(t.Context(), `SELECT process || ' ' || target || ' ' || watchers || ' ' || furthest_behind || ' ' || resets FROM reconciler.stream_watchers`).Scan(&text)
		return err == nil && text == "here:1 eu 1 0 0"
	}, deadline, 10*time.Millisecond)
}
