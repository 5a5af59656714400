package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// Exercise runs the whole suite. newFixture is called for each of its tests, with that test's t.
func Exercise(t *testing.T, newFixture func(t *testing.T) Fixture) {
	t.Helper()
	for _, part := range []struct {
		name string
		run  func(*testing.T, *bench)
	}{
		{"AppliesAndDeletesAnObject", appliesAndDeletes},
		{"RepeatedCallsChangeNothing", repeatedCalls},
		{"DeletingWhatIsAbsentIsDone", deletingAbsent},
		{"TakesAnOlderRevisionOfANewerTerm", newerTerm},
		{"KeepsEveryShapeOfSpec", specShapes},
		{"KeepsALargeSpec", largeSpec},
		{"KeepsHostileKeysApart", hostileKeys},
		{"KeepsHostileResourcesApart", hostileResources},
		{"KeepsLongKeys", longKeys},
		{"TakesConcurrentCalls", concurrentCalls},
		{"FollowsRandomCalls", randomCalls},
		{"DoesNothingOnceTheContextEnded", contextEnded},
		{"SurvivesAContextThatEndsDuringCalls", contextEndsDuring},
		{"ListsExactly", listsExactly},
		{"ListsSpecsByTheirHash", listsHashes},
		{"ListsSpecsByTheirMemory", listsMemories},
		{"ListStopsWithItsConsumerAndContext", listStops},
		{"BatchesAreLikeSingleCalls", batches},
		{"SurvivesLostMemory", survivesLostMemory},
		{"SurvivesStaleMemory", survivesStaleMemory},
		{"WatchNamesWhatChanges", watches},
		{"WatchStopsWithItsContext", watchStops},
		{"ChecksAWorkingTarget", checks},
		{"ReportsTheHealthOfEachObject", reportsObjects},
		{"DiffShowsWhatACallWouldChange", differs},
		{"DiffHidesSecrets", diffHidesSecrets},
		{"DiffOfATargetThatIsAwayIsAnError", diffAway},
		{"RemovesWhatIsGuardedWithApproval", asksForApproval},
		{"ClosesUnused", func(*testing.T, *bench) {}},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, newFixture)
			part.run(t, b)
			if b.Intact != nil {
				b.Intact(t)
			}
		})
	}
}

func appliesAndDeletes(t *testing.T, b *bench) {
	require.Zero(t, b.Count(t), "the fixture's target is not empty")
	b.requireDone(t, b.apply(t, "apps", "web", `{"image": "web:1"}`))
	b.requireHas(t, "apps", "web", `{"image": "web:1"}`)
	b.requireDone(t, b.apply(t, "apps", "web", `{"image": "web:2", "replicas": 3}`))
	b.requireHas(t, "apps", "web", `{"image": "web:2", "replicas": 3}`)
	b.requireDone(t, b.apply(t, "apps", "web", `{}`))
	b.requireHas(t, "apps", "web", `{}`)

	b.requireDone(t, b.apply(t, "apps", "db", `{"image": "db:1"}`))
	b.requireDone(t, b.apply(t, "jobs", "web", `{"image": "job:1"}`))
	require.Equal(t, 3, b.Count(t))
	b.requireDone(t, b.delete(t, "apps", "web"))
	b.requireAbsent(t, "apps", "web")
	b.requireHas(t, "apps", "db", `{"image": "db:1"}`)
	b.requireHas(t, "jobs", "web", `{"image": "job:1"}`)

	b.requireDone(t, b.apply(t, "apps", "web", `{"image": "web:3"}`))
	b.requireHas(t, "apps", "web", `{"image": "web:3"}`)
	require.Equal(t, 3, b.Count(t))
}

// C33: a call whose result was lost is made again, with the same revision.
func repeatedCalls(t *testing.T, b *bench) {
	obj := b.object("apps", "web", `{"image": "web:1"}`)
	for range 3 {
		b.requireDone(t, b.applyObject(t, t.Context(), obj))
		b.requireHas(t, "apps", "web", `{"image": "web:1"}`)
		require.Equal(t, 1, b.Count(t))
	}
	ref := b.ref("apps", "web")
	for range 3 {
		b.requireDone(t, b.deleteRef(t, t.Context(), ref))
		b.requireAbsent(t, "apps", "web")
		require.Zero(t, b.Count(t))
	}
}

// C31.
func deletingAbsent(t *testing.T, b *bench) {
	b.requireDone(t, b.delete(t, "never seen", "never seen"))
	b.requireDone(t, b.apply(t, "apps", "web", `{}`))
	b.requireDone(t, b.delete(t, "apps", "we"))
	b.requireDone(t, b.delete(t, "apps", "web2"))
	b.requireDone(t, b.delete(t, "app", "web"))
	require.Equal(t, 1, b.Count(t))
}

// A target that refuses stale calls must go by the term first: a new owner may know of no revision.
func newerTerm(t *testing.T, b *bench) {
	obj := b.object("apps", "web", `{"n": 1}`)
	obj.Revision, obj.Term = 100, 1
	b.requireDone(t, b.applyObject(t, t.Context(), obj))
	obj = b.object("apps", "web", `{"n": 2}`)
	obj.Revision, obj.Term = 0, 2
	b.requireDone(t, b.applyObject(t, t.Context(), obj))
	b.requireHas(t, "apps", "web", `{"n": 2}`)
	ref := b.ref("apps", "web")
	ref.Revision, ref.Term = 0, 3
	b.requireDone(t, b.deleteRef(t, t.Context(), ref))
	b.requireAbsent(t, "apps", "web")
}

// shapes are specs in PostgreSQL's text form of jsonb: keys by length and then by bytes.
var shapes = []string{
	`{}`, `[]`, `null`, `true`, `false`, `0`, `-1.50`, `123456789012345678901234567890.123456789`,
	`{"a": {"b": {"c": [1, 2, {"d": null}]}}}`, `{"": "empty key", "k\"q": "</script><!--"}`,
	`{"é": "ü", "snow": "☃", "emoji": "😀"}`, `[[], {}, "", 0]`,
	`""`, `"text"`, `"two\nlines\n"`, `"\n"`, `"{\"looks\": \"like JSON\"}"`, `"{\"looks\": \"like JSON\"}\n"`,
	`"quoted \"text\" \\ \t"`, `"\u0001\u001f"`, `"null"`, `"nested"`, `"\"nested\"\n"`, `"☃ 😀"`,
}

func specShapes(t *testing.T, b *bench) {
	for i, spec := range shapes {
		b.requireDone(t, b.apply(t, "apps", fmt.Sprint("own-", i), spec))
		b.requireHas(t, "apps", fmt.Sprint("own-", i), spec)
		b.requireDone(t, b.apply(t, "apps", "shared", spec))
		b.requireHas(t, "apps", "shared", spec)
	}
	require.Equal(t, len(shapes)+1, b.Count(t))
}

func largeSpec(t *testing.T, b *bench) {
	size := 1 << 20
	if b.SpecMost > 0 {
		size = min(size, b.SpecMost*5/6-100)
	}
	object := `{"blob": "` + strings.Repeat("x\u00e9\\\"", size/5) + `"}`
	text := `"` + strings.Repeat(`line\n`, size/5) + `"`
	b.requireDone(t, b.apply(t, "apps", "object", object))
	b.requireHas(t, "apps", "object", object)
	b.requireDone(t, b.apply(t, "apps", "text", text))
	b.requireHas(t, "apps", "text", text)
	b.requireDone(t, b.delete(t, "apps", "object"))
	require.Equal(t, 1, b.Count(t))
}

func concurrentCalls(t *testing.T, b *bench) {
	const workers, calls = 8, 12
	var wg sync.WaitGroup
	errs := make(chan error, workers*calls*3)
	for w := range workers {
		wg.Go(func() {
			for i := range calls {
				key := fmt.Sprintf("%d-%d", w, i)
				errs <- b.doneError(b.applyNow(t.Context(), b.object("apps", key, `{"old": true}`)))
				errs <- b.doneError(b.applyNow(t.Context(), b.object("apps", key, `{"key": "`+key+`"}`)))
				if i%3 == 0 {
					errs <- b.doneError(b.deleteNow(t.Context(), b.ref("apps", key)))
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	for w := range workers {
		for i := range calls {
			if key := fmt.Sprintf("%d-%d", w, i); i%3 == 0 {
				b.requireAbsent(t, "apps", key)
			} else {
				b.requireHas(t, "apps", key, `{"key": "`+key+`"}`)
			}
		}
	}
	require.Equal(t, workers*calls*2/3, b.Count(t))
}

func (b *bench) doneError(o driver.Outcome) error {
	if err := b.outcomeError(o); err != nil {
		return err
	}
	return o.Err
}

// randomCalls compares the target with a map after random calls.
func randomCalls(t *testing.T, b *bench) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	resources := []string{"apps", "jobs", "odd name/.."}
	model := map[[2]string]string{}
	for range 150 {
		resource, key := resources[random.IntN(len(resources))], fmt.Sprint("k", random.IntN(8))
		if random.IntN(3) == 0 {
			b.requireDone(t, b.delete(t, resource, key))
			delete(model, [2]string{resource, key})
			continue
		}
		spec := shapes[random.IntN(len(shapes))]
		b.requireDone(t, b.apply(t, resource, key, spec))
		model[[2]string{resource, key}] = spec
	}
	for name, spec := range model {
		b.requireHas(t, name[0], name[1], spec)
	}
	require.Equal(t, len(model), b.Count(t))
}

func contextEnded(t *testing.T, b *bench) {
	b.requireDone(t, b.apply(t, "apps", "web", `{"n": 1}`))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the target was handed over"))
	b.requireCut(t, b.applyObject(t, ctx, b.object("apps", "web", `{"n": 2}`)))
	b.requireCut(t, b.applyObject(t, ctx, b.object("apps", "new", `{"n": 2}`)))
	b.requireCut(t, b.deleteRef(t, ctx, b.ref("apps", "web")))
	b.requireHas(t, "apps", "web", `{"n": 1}`)
	require.Equal(t, 1, b.Count(t))
}

// requireCut fails unless the outcome is one of a call that was cut short: it says nothing about the target or
// the object, so it may neither open the circuit nor block the object.
func (b *bench) requireCut(t *testing.T, o driver.Outcome) {
	t.Helper()
	require.Equal(t, driver.VerdictBackoff, o.Verdict, "error: %v", o.Err)
}

func contextEndsDuring(t *testing.T, b *bench) {
	const calls = 16
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	outcomes := make([]driver.Outcome, calls)
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			outcomes[i] = b.applyNow(ctx, b.object("apps", fmt.Sprint(i), `{"n": 1}`))
			cancel() // the first to end cuts the others short
		})
	}
	wg.Wait()
	for i, outcome := range outcomes {
		require.NoError(t, b.outcomeError(outcome))
		if outcome.Verdict != driver.VerdictDone {
			b.requireCut(t, outcome)
			continue
		}
		b.requireHas(t, "apps", fmt.Sprint(i), `{"n": 1}`)
	}
	for i := range calls {
		b.requireDone(t, b.apply(t, "apps", fmt.Sprint(i), `{"n": 2}`))
		b.requireHas(t, "apps", fmt.Sprint(i), `{"n": 2}`)
	}
	require.Equal(t, calls, b.Count(t))
}

func checks(t *testing.T, b *bench) {
	if checker, ok := b.Driver.(driver.Checker); ok {
		require.NoError(t, checker.Check(t.Context()))
	}
	if troubled, ok := b.Driver.(driver.Troubled); ok {
		require.NoError(t, troubled.Trouble())
	}
	if reporter, ok := b.Driver.(driver.HealthReporter); ok {
		require.NoError(t, reporter.Health(t.Context()))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("the target was handed over"))
		require.Error(t, reporter.Health(ctx), "what was not asked is not healthy")
	}
	require.Zero(t, b.Count(t), "looking changed the target")
}
