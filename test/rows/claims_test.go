package rows_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// claiming is a driver whose objects have parts that move. It notes what is claimed and called, in order, and what the owner knows of
// another object during the calls.
type claiming struct {
	*servertest.Place

	mu     sync.Mutex // guards what follows
	events []string
	asks   [2]string // resource and key
	told   []string
}

func (c *claiming) Claim(obj driver.Object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, "claim "+obj.Resource)
	return string(obj.Spec) == `"less"`
}

func (c *claiming) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	c.called(ctx, obj.Ref)
	return c.Place.Apply(ctx, obj)
}

func (c *claiming) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	c.called(ctx, ref)
	return c.Place.Delete(ctx, ref)
}

func (c *claiming) called(ctx context.Context, ref driver.Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, "call "+ref.Resource)
	if c.asks[0] != "" {
		spec, err := ref.Owner.Wanted(ctx, c.asks[0], c.asks[1])
		c.told = append(c.told, fmt.Sprintf("%s %v", spec, err))
	}
}

// ask has the owner asked during each call from now on.
func (c *claiming) ask(resource, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asks, c.told = [2]string{resource, key}, nil
}

func (c *claiming) answers() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told
}

// F165: what a commit removes is called for after everything that it asks for was claimed, also of another resource.
func TestF165_RemovalsGoAfterClaims(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, spec jsonb); CREATE TABLE jobs (LIKE apps INCLUDING ALL);
		INSERT INTO apps SELECT i, '"more"' FROM generate_series(1, 40) AS i`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'spec'), reconciler.track('job', 'jobs', '{id}', '''eu''', spec => 'spec')`)
	eu := &claiming{Place: servertest.NewPlace()}
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Guard.MaxFraction = new(1.0) }))
	w.Wait()
	eu.events = nil
	w.DB.Exec(t, `DO $$ BEGIN
		DELETE FROM apps WHERE id <= 20;
		UPDATE apps SET spec = '"less"' WHERE id > 20;
		INSERT INTO jobs SELECT i, '"more"' FROM generate_series(1, 40) AS i;
	END $$`)
	w.Wait()
	before, _, _ := strings.Cut(strings.Join(eu.events, "\n"), "call app")
	require.Equal(t, 40, strings.Count(before, "claim job"), "%v", eu.events)
}

// F165: during a call the owner knows what the row of another object asks for at that time.
func TestF165_TheOwnerKnowsOtherRowsAsTheyAre(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, d int DEFAULT 1, spec jsonb); INSERT INTO apps (id, spec) VALUES (1, '{"a": 1}'), (2, '2')`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'jsonb_build_object(''spec'', spec, ''d'', 1 / d)')`)
	eu := &claiming{Place: servertest.NewPlace()}
	w.Start(servertest.Named("eu", eu))
	w.Wait()
	for i, one := range []struct{ resource, key, want string }{
		{"app", "1", `{"d": 1, "spec": {"a": 1}} <nil>`}, {"app", "7", ` <nil>`}, {"none", "1", ` <nil>`},
	} {
		eu.ask(one.resource, one.key)
		w.DB.Exec(t, `UPDATE apps SET spec = to_jsonb($1::int) WHERE id = 2`, 10+i)
		w.Wait()
		require.Equal(t, []string{one.want}, eu.answers())
	}
	w.DB.Exec(t, `UPDATE apps SET d = 0 WHERE id = 1`)
	w.Settled("blocked", `SELECT state::text FROM reconciler.objects WHERE target = 'eu' AND key = '1'`)
	eu.ask("app", "1")
	w.DB.Exec(t, `UPDATE apps SET spec = '20' WHERE id = 2`)
	w.Eventually("the call for the other row", func() bool { return len(eu.answers()) > 0 })
	require.Equal(t, []string{` its row cannot be read: division by zero`}, eu.answers())
	w.DB.Exec(t, `UPDATE apps SET d = 1 WHERE id = 1`)
	w.Wait()
}
