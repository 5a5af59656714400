-- +goose Up

-- ledger_result is what came of an object that the ledger keeps. A negative delay stands for no further attempt, a negative generation for
-- the ledger's, whatever it is. 0 leaves applied_revision as it is, and NULL protected, match and memory.
CREATE TYPE reconciler.ledger_result AS (
    resource_id      integer,
    key              text,
    state            reconciler.object_state,
    wanted           boolean,
    present          boolean,
    desired_revision bigint,
    applied_revision bigint,
    applied_hash     bytea,
    failed_hash      bytea,
    attempts         integer,
    error            text,
    held_by          text,
    approved         boolean,
    protected        boolean,
    delay            double precision, -- seconds until the next attempt
    called           boolean,
    match            jsonb,
    generation       integer,
    memory           bytea
);
COMMENT ON TYPE reconciler.ledger_result IS 'Internal: what came of an object, for settle().';

-- +goose StatementBegin
-- settle is how an owner records what came of its calls: ledger rows, removed ledger rows and the cursor, in one
-- statement and so in one transaction and one round trip. It refuses a deposed owner. Without cursor_revision the cursor stays.
-- It locks the target first, as retry(), approve() and resume() do, so that it never deadlocks with them. Rows are written by key, so
-- that no plan on a young table can turn into a scan.
-- Processor time of the backend for 1 to 1,000 results (PostgreSQL 15), relative to this: with an array for each column 1.1, as a
-- pipeline of separate statements 1.1 to 1.4, with jsonb 1.1 to 1.6.
CREATE FUNCTION reconciler.settle(
    target_id integer, owner uuid, term bigint,
    results reconciler.ledger_result[], gone_resource_ids integer[], gone_keys text[],
    cursor_revision bigint, cursor_snapshot pg_snapshot, batch_revision bigint, batch_snapshot pg_snapshot, batch_xid xid8, batch_seq bigint,
    count_guard boolean, passed bigint, passed_of bigint, guard_window double precision, ended_calls bigint[]
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    -- resume() locks the target too: what was found paused before and is recorded after it must not be held for ever.
    paused boolean := reconciler.fence(settle.target_id, settle.owner, settle.term);
    written bigint;
BEGIN
    IF cardinality(settle.results) > 0 THEN
        INSERT INTO reconciler.ledger AS l (target_id, resource_id, key, state, wanted, present, desired_revision, applied_revision,
            applied_hash, failed_hash, attempts, last_error, held_by, approved, protected, next_attempt_at, applied_at, match, generation, memory)
        SELECT settle.target_id, r.resource_id, r.key, CASE WHEN r.held_by = 'pause' AND NOT paused THEN 'pending' ELSE r.state END, r.wanted, r.present, r.desired_revision, nullif(r.applied_revision, 0),
            r.applied_hash, r.failed_hash, r.attempts, r.error, CASE WHEN r.held_by <> 'pause' OR paused THEN r.held_by END, r.approved, coalesce(r.protected, (
                SELECT x.protected FROM reconciler.ledger x
                WHERE x.target_id = settle.target_id AND x.resource_id = r.resource_id AND x.key = r.key), false),
            CASE WHEN r.delay >= 0 THEN clock_timestamp() + make_interval(secs => r.delay) WHEN r.held_by = 'pause' AND NOT paused THEN clock_timestamp() END,
            CASE WHEN r.called AND r.state = 'applied' THEN clock_timestamp() END, r.match,
            CASE WHEN r.generation >= 0 THEN r.generation ELSE coalesce((
                SELECT x.generation FROM reconciler.ledger x
                WHERE x.target_id = settle.target_id AND x.resource_id = r.resource_id AND x.key = r.key), 0) END,
            r.memory
        FROM unnest(settle.results) AS r
        -- A resource that was untracked meanwhile has no ledger any more.
        WHERE EXISTS (SELECT FROM reconciler.resources x WHERE x.id = r.resource_id)
        ORDER BY r.resource_id, r.key COLLATE "C"
        ON CONFLICT (target_id, resource_id, key) DO UPDATE SET
            state = excluded.state, wanted = excluded.wanted, present = excluded.present,
            desired_revision = greatest(l.desired_revision, excluded.desired_revision),
            applied_revision = coalesce(excluded.applied_revision, l.applied_revision),
            applied_hash = excluded.applied_hash, failed_hash = excluded.failed_hash, attempts = excluded.attempts,
            last_error = excluded.last_error, held_by = excluded.held_by, approved = excluded.approved, protected = excluded.protected,
            next_attempt_at = excluded.next_attempt_at, applied_at = coalesce(excluded.applied_at, l.applied_at),
            match = coalesce(excluded.match, l.match), memory = coalesce(excluded.memory, l.memory)
        WHERE l.generation = excluded.generation;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality(settle.results) THEN
            -- A look from before retry() or approve() says what the target has and what the driver remembers, and nothing else. The object is due again.
            UPDATE reconciler.ledger l SET present = r.present, applied_hash = r.applied_hash,
                applied_revision = coalesce(nullif(r.applied_revision, 0), l.applied_revision),
                applied_at = CASE WHEN r.called AND r.state = 'applied' THEN clock_timestamp() ELSE l.applied_at END,
                next_attempt_at = CASE WHEN l.state IN ('pending', 'failing') THEN clock_timestamp() END, memory = coalesce(r.memory, l.memory)
            FROM unnest(settle.results) AS r
            WHERE l.target_id = settle.target_id AND l.resource_id = r.resource_id AND l.key = r.key
              AND r.generation >= 0 AND l.generation <> r.generation;
        END IF;
    END IF;
    IF cardinality(settle.gone_keys) > 0 THEN
        DELETE FROM reconciler.ledger l USING unnest(settle.gone_resource_ids, settle.gone_keys) AS g(resource_id, key)
        WHERE l.target_id = settle.target_id AND l.resource_id = g.resource_id AND l.key = g.key;
    END IF;
    IF settle.cursor_revision IS NOT NULL THEN
        PERFORM reconciler.write_cursor(settle.target_id, settle.cursor_revision, settle.cursor_snapshot,
            settle.batch_revision, settle.batch_snapshot, settle.batch_xid, settle.batch_seq);
    END IF;
    IF settle.count_guard THEN
        PERFORM reconciler.count_guard(settle.target_id);
    END IF;
    PERFORM reconciler.note_passed(settle.target_id, settle.passed, settle.passed_of, settle.guard_window) WHERE settle.passed > 0;
    PERFORM reconciler.end_first_calls(settle.ended_calls) WHERE settle.ended_calls <> '{}';
END
$$;

-- note_passed remembers deletes that the guard let pass, for the next owner. What counts no longer goes elsewhere: here, dead
-- rows would be walked each time.
CREATE FUNCTION reconciler.note_passed(target_id integer, deletes bigint, objects bigint, guard_window double precision) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO reconciler.guard_passes (target_id, until, deletes, objects)
    VALUES (note_passed.target_id, clock_timestamp() + make_interval(secs => note_passed.guard_window), note_passed.deletes, note_passed.objects)
$$;

-- count_guard writes down how many deletes the guard holds, and how many of them are protected, for people to see.
CREATE FUNCTION reconciler.count_guard(target_id integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    n         bigint;
    protected bigint;
BEGIN
    SELECT count(*), count(*) FILTER (WHERE l.protected) INTO n, protected
    FROM reconciler.ledger l WHERE l.target_id = count_guard.target_id AND l.state = 'held' AND l.held_by = 'guard';
    UPDATE reconciler.targets t SET guard_deletes = nullif(n, 0), guard_protected = nullif(protected, 0), guard_since = CASE WHEN n > 0 THEN coalesce(t.guard_since, clock_timestamp()) END,
        guard_objects = CASE WHEN n > 0 THEN coalesce(t.guard_objects, (SELECT count(*) FROM reconciler.ledger l
            WHERE l.target_id = count_guard.target_id AND l.present AND l.resource_id IN (SELECT r.id FROM reconciler.resources r))) END
    WHERE t.id = count_guard.target_id AND (t.guard_deletes, t.guard_protected) IS DISTINCT FROM (nullif(n, 0), nullif(protected, 0));
    RETURN n;
END
$$;

-- owed_resources returns the resources that a sync could not read. Deletes of theirs that it had found are decided on by the syncs
-- that are requested for them.
CREATE FUNCTION reconciler.owed_resources(target_id integer, parked_by text) RETURNS integer[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(r.resource_id), '{}') FROM reconciler.sync_runs r
    WHERE owed_resources.parked_by = 'sync' AND r.target_id = owed_resources.target_id AND r.resource_id IS NOT NULL
      AND r.state = 'requested' AND r.not_before IS NOT NULL
$$;

-- decide_parked ends a count of deletes (held_by 'sync' or 'batch'): all of them go ahead, or all of them are held. One that
-- has become protected since it was parked is looked at again, and waits for approve().
CREATE FUNCTION reconciler.decide_parked(target_id integer, owner uuid, term bigint, parked_by text, allow boolean, counted boolean, objects bigint, guard_window double precision) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    n bigint;
BEGIN
    PERFORM reconciler.fence(decide_parked.target_id, decide_parked.owner, decide_parked.term);
    UPDATE reconciler.ledger l SET state = CASE WHEN allow THEN 'pending' ELSE 'held' END::reconciler.object_state,
        held_by = CASE WHEN NOT allow THEN 'guard' END, next_attempt_at = CASE WHEN allow THEN clock_timestamp() END, approved = allow AND NOT l.protected
    WHERE l.target_id = decide_parked.target_id AND l.state = 'held' AND l.held_by = decide_parked.parked_by
      AND l.resource_id <> ALL ((SELECT reconciler.owed_resources(decide_parked.target_id, decide_parked.parked_by))::integer[]);
    GET DIAGNOSTICS n = ROW_COUNT;
    PERFORM reconciler.note_passed(decide_parked.target_id, n, decide_parked.objects, decide_parked.guard_window) WHERE allow AND counted AND n > 0;
    PERFORM reconciler.count_guard(decide_parked.target_id);
    RETURN n;
END
$$;

-- captured_protect returns whether the row protected the object when it was last captured. NULL: the outbox does not have that,
-- or the ledger's row comes from a later look at the row. A read that finds no row for the object calls it in the same snapshot,
-- so the answer belongs to the last row there was. The feed could carry an older answer: the row may have come back and gone
-- again since that change.
CREATE FUNCTION reconciler.captured_protect(target_id integer, resource_id integer, key text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    place  text := (SELECT t.name FROM reconciler.targets t WHERE t.id = captured_protect.target_id);
    newest record;
BEGIN
    -- Each side walks the index from its newest row, which an OR would not.
    SELECT n.* INTO newest FROM (
        (SELECT o.xid, o.seq, o.protect FROM reconciler.outbox o
         WHERE o.resource_id = captured_protect.resource_id AND o.key COLLATE "C" = captured_protect.key
           AND o.target COLLATE "C" = place AND o.protect IS NOT NULL
         ORDER BY o.seq DESC LIMIT 1)
        UNION ALL
        (SELECT o.xid, o.seq, o.protect FROM reconciler.outbox o
         WHERE o.resource_id = captured_protect.resource_id AND o.key COLLATE "C" = captured_protect.key
           AND o.target COLLATE "C" IS NULL AND o.protect IS NOT NULL
         ORDER BY o.seq DESC LIMIT 1)
    ) AS n ORDER BY n.seq DESC LIMIT 1;
    -- desired_revision is one that the look at the row has seen all of. If it is forgotten, the one before it shows less: then the
    -- outbox decides once more.
    RETURN CASE WHEN NOT coalesce(pg_visible_in_snapshot(newest.xid, (
        SELECT k.snapshot FROM reconciler.ticks k WHERE k.revision <= (
            SELECT l.desired_revision FROM reconciler.ledger l
            WHERE l.target_id = captured_protect.target_id AND l.resource_id = captured_protect.resource_id
              AND l.key = captured_protect.key)
        ORDER BY k.revision DESC LIMIT 1)), false) THEN newest.protect END;
END
$$;

-- record_in_hand gives objects that do not settle soon their ledger row: the owner has them in hand and looks again
-- only after patience, a process that takes over does at once. The cursor passes their changes then, and retention may remove them:
-- the ledger takes over what they say about protection. A delete that becomes protected loses its approval. called: the first call for it may have begun, so that it is
-- present; other objects that the ledger did not know are absent.
CREATE FUNCTION reconciler.record_in_hand(target_id integer, owner uuid, term bigint, resource_ids integer[], keys text[], called boolean[], patience interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM reconciler.fence(record_in_hand.target_id, record_in_hand.owner, record_in_hand.term);
    INSERT INTO reconciler.ledger AS l (target_id, resource_id, key, state, wanted, present, protected, next_attempt_at)
    SELECT record_in_hand.target_id, n.resource_id, n.key, 'pending', true, n.called, r.protect IS NOT NULL, clock_timestamp() + record_in_hand.patience
    FROM unnest(record_in_hand.resource_ids, record_in_hand.keys, record_in_hand.called) AS n(resource_id, key, called)
    CROSS JOIN LATERAL (SELECT x.protect FROM reconciler.resources x WHERE x.id = n.resource_id LIMIT 1) AS r
    ORDER BY n.resource_id, n.key COLLATE "C"
    ON CONFLICT (target_id, resource_id, key) DO UPDATE SET state = 'pending', wanted = l.wanted OR excluded.present, present = l.present OR excluded.present,
        protected = CASE WHEN l.present THEN l.protected ELSE excluded.protected END, held_by = NULL, next_attempt_at = excluded.next_attempt_at
    -- What waits for something else than this process goes on waiting: it is recorded already.
    WHERE l.state = 'applied' OR l.state = 'pending' AND l.next_attempt_at > excluded.next_attempt_at OR excluded.present AND NOT l.present;
    UPDATE reconciler.ledger l SET protected = c.protect, approved = l.approved AND l.protected
    FROM unnest(record_in_hand.resource_ids, record_in_hand.keys) AS n(resource_id, key)
    JOIN reconciler.resources r ON r.id = n.resource_id AND r.protect IS NOT NULL
    CROSS JOIN LATERAL (SELECT reconciler.captured_protect(record_in_hand.target_id, n.resource_id, n.key) AS protect) AS c
    WHERE l.target_id = record_in_hand.target_id AND l.resource_id = n.resource_id AND l.key = n.key AND l.protected <> c.protect
      AND (c.protect OR l.held_by IS DISTINCT FROM 'guard');
END
$$;

-- record_first_calls writes down which objects are about to be called for that the ledger does not know, in the transaction that has
-- read their rows: whatever locks out the readers of these rows finds all that may be called for. It takes no lock on the
-- target, where it would wait for results to be written: what a deposed owner is late with does no harm, and its calls end
-- with its lease. It returns the number by which settle() removes the row when the calls have their results.
-- The change that an object is called for was committed before, and no cursor has passed it: if a crash of the server
-- takes the row, that change is read again and worked on whatever the ledger says. With flush, and where the cursor may
-- have passed (there is a ledger row, of an object in hand), the row outlives the crash by itself.
CREATE FUNCTION reconciler.record_first_calls(target_id integer, owner uuid, term bigint, resource_id integer, keys text[], flush boolean) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    number bigint;
BEGIN
    INSERT INTO reconciler.first_calls (target_id, term, resource_id, keys)
    SELECT t.id, t.term, record_first_calls.resource_id, record_first_calls.keys FROM reconciler.targets t
    WHERE t.id = record_first_calls.target_id AND t.owner = record_first_calls.owner AND t.term = record_first_calls.term
    RETURNING id INTO number;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'target % was taken over by another process: term % is over', record_first_calls.target_id, record_first_calls.term USING ERRCODE = 'RC001';
    END IF;
    PERFORM set_config('synchronous_commit', CASE WHEN record_first_calls.flush THEN 'on' ELSE 'off' END, true);
    RETURN number;
END
$$;

-- take_in_calls gives what former owners of a target may have called for its ledger row: present, and due soon. The next owner calls
-- it before it trusts the ledger. A key that is not unique is no object.
CREATE FUNCTION reconciler.take_in_calls(target_id integer) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    WITH ended AS (
        DELETE FROM reconciler.first_calls c WHERE c.target_id = take_in_calls.target_id RETURNING c.resource_id, c.keys
    )
    INSERT INTO reconciler.ledger AS l (target_id, resource_id, key, state, wanted, present, protected, next_attempt_at)
    SELECT take_in_calls.target_id, c.resource_id, k.key, 'pending', true, true, r.protect IS NOT NULL, clock_timestamp() + interval '30 seconds'
    FROM ended c JOIN reconciler.resources r ON r.id = c.resource_id CROSS JOIN LATERAL (SELECT u AS key FROM unnest(c.keys) AS u GROUP BY u HAVING count(*) = 1) AS k
    GROUP BY c.resource_id, k.key, r.protect ORDER BY c.resource_id, k.key COLLATE "C"
    ON CONFLICT (target_id, resource_id, key) DO UPDATE SET state = 'pending', wanted = true, present = true, protected = excluded.protected, held_by = NULL, next_attempt_at = least(l.next_attempt_at, excluded.next_attempt_at)
    WHERE NOT l.present
$$;

-- resource_gaps are the ranges between the ids of resources: what has an id in one is of a resource that is gone.
CREATE FUNCTION reconciler.resource_gaps() RETURNS TABLE (above integer, below integer)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(lag(r.id) OVER (ORDER BY r.id), 0), r.id FROM (SELECT x.id FROM reconciler.resources AS x UNION ALL SELECT 2147483647) AS r (id)
$$;

-- forget_objects removes ledger rows of resources that are gone, a bounded number at once, and returns how many.
CREATE FUNCTION reconciler.forget_objects(most integer) RETURNS integer
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH left_behind AS MATERIALIZED (
        SELECT x.ctid AS at FROM reconciler.targets t CROSS JOIN reconciler.resource_gaps() AS g CROSS JOIN LATERAL (
            SELECT l.ctid FROM reconciler.ledger l WHERE l.target_id = t.id AND l.resource_id > g.above AND l.resource_id < g.below
            LIMIT forget_objects.most FOR UPDATE SKIP LOCKED) AS x LIMIT forget_objects.most
    ), forgotten AS (
        DELETE FROM reconciler.ledger l WHERE l.ctid = ANY (ARRAY(SELECT at FROM left_behind)) RETURNING 1
    )
    SELECT count(*)::integer FROM forgotten
$$;

-- end_first_calls removes rows whose calls have their results, each by its number, whatever is known of a young table.
CREATE FUNCTION reconciler.end_first_calls(numbers bigint[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
    DELETE FROM reconciler.first_calls c WHERE c.id = ANY (end_first_calls.numbers)
$$;

-- start_cursor gives a target its first cursor and asks for the full sync that covers everything before it, in one
-- transaction: a cursor without that sync would be a loss.
CREATE FUNCTION reconciler.start_cursor(target_id integer, owner uuid, term bigint, revision bigint, snapshot text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM reconciler.fence(start_cursor.target_id, start_cursor.owner, start_cursor.term);
    PERFORM reconciler.write_cursor(start_cursor.target_id, start_cursor.revision, start_cursor.snapshot::pg_snapshot);
    PERFORM reconciler.require_sync(start_cursor.target_id, 'first', true);
END
$$;

-- raise_cursor is for a target whose cursor fell below the floor: it asks for the full sync that makes up for what
-- retention dropped, and has the cursor stand at the floor, in one transaction. It returns where it stands. Only the revision
-- rises: the snapshot stays, and with it the changes that are still there are read. They may name objects that a dead owner
-- called for, and that no row wants any more.
CREATE FUNCTION reconciler.raise_cursor(target_id integer, owner uuid, term bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    c      reconciler.cursors;
    raised bigint;
BEGIN
    PERFORM reconciler.fence(raise_cursor.target_id, raise_cursor.owner, raise_cursor.term);
    c := reconciler.cursor_of(raise_cursor.target_id);
    IF c.revision IS NOT NULL THEN
        raised := greatest(c.revision, (SELECT s.floor_revision FROM reconciler.installation s));
        PERFORM reconciler.write_cursor(raise_cursor.target_id, raised, c.snapshot);
    END IF;
    PERFORM reconciler.require_sync(raise_cursor.target_id, 'retention', false);
    RETURN coalesce(raised, 0);
END
$$;

-- require_sync asks for a full sync of a target without which it may lack something.
CREATE FUNCTION reconciler.require_sync(target_id integer, reason text, verify boolean) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO reconciler.sync_runs (target_id, reason, verify) VALUES (require_sync.target_id, require_sync.reason, require_sync.verify)
    ON CONFLICT (target_id, coalesce(resource_id, 0)) WHERE state = 'requested' DO UPDATE
    -- wait() does not wait for a mere check at an interval, but for this one.
    SET reason = CASE sync_runs.reason WHEN 'resync' THEN 'resync' ELSE excluded.reason END, mode = 'repair', verify = sync_runs.verify OR excluded.verify, not_before = NULL
$$;

-- resync_after_old_primary requests a verifying sync of targets that a process changed on behalf of an old primary before it moved
-- here. ages says how long ago it last owned each of them there. If that was after this server was adopted, the sync of adopt() came
-- too early to repair the changes. Ages are durations because the clocks of two servers cannot be compared.
CREATE FUNCTION reconciler.resync_after_old_primary(targets text[], ages interval[]) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- NULL until a leader has adopted this server, which starts everything over anyway.
    since timestamptz := (SELECT s.adopted_at FROM reconciler.installation s, reconciler.this_server() AS here WHERE s.timeline = here.timeline);
    one   record;
    names text[] := '{}';
BEGIN
    FOR one IN SELECT t.id, t.name FROM unnest(resync_after_old_primary.targets, resync_after_old_primary.ages) AS o(name, age)
            JOIN reconciler.targets t ON t.name = o.name WHERE clock_timestamp() - o.age > since ORDER BY t.name LOOP
        PERFORM reconciler.require_sync(one.id, 'restored', true);
        UPDATE reconciler.targets t SET lost_at = clock_timestamp() WHERE t.id = one.id;
        names := names || one.name;
    END LOOP;
    IF names <> '{}' THEN
        PERFORM pg_notify('reconciler_control', '');
    END IF;
    RETURN names;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.captured_protect IS 'Internal: whether the last captured change of an object says that its row protects it.';
COMMENT ON FUNCTION reconciler.record_in_hand IS 'Internal: gives objects that do not settle soon their ledger row.';
COMMENT ON FUNCTION reconciler.record_first_calls IS 'Internal: writes down objects that are about to be called for the first time.';
COMMENT ON FUNCTION reconciler.take_in_calls IS 'Internal: gives objects that a former owner called for the first time their ledger row.';
COMMENT ON FUNCTION reconciler.resource_gaps IS 'Internal: ranges of ids that no resource has.';
COMMENT ON FUNCTION reconciler.forget_objects IS 'Internal: removes ledger rows of resources that are gone.';
COMMENT ON FUNCTION reconciler.end_first_calls IS 'Internal: forgets first calls that have their results.';
COMMENT ON FUNCTION reconciler.start_cursor IS 'Internal: gives a target its first cursor and asks for the full sync that goes with it.';
COMMENT ON FUNCTION reconciler.raise_cursor IS 'Internal: takes a cursor that fell below the floor up to it and asks for the full sync that goes with that.';
COMMENT ON FUNCTION reconciler.require_sync IS 'Internal: asks for a full sync without which a target may lack something.';
COMMENT ON FUNCTION reconciler.resync_after_old_primary IS 'Internal: looks again at targets that a process has changed by an old primary.';
COMMENT ON FUNCTION reconciler.settle IS 'Internal: an owner records the results of its calls and its cursor.';
COMMENT ON FUNCTION reconciler.count_guard IS 'Internal: counts the deletes that the guard holds.';
COMMENT ON FUNCTION reconciler.note_passed IS 'Internal: remembers deletes that the guard let pass.';
COMMENT ON FUNCTION reconciler.owed_resources IS 'Internal: the resources that a sync could not read.';
COMMENT ON FUNCTION reconciler.decide_parked IS 'Internal: lets counted deletes go ahead, or holds them.';

-- Functions are for the roles that grant() names, not for everybody.
SELECT reconciler.regrant();

-- +goose Down
DROP FUNCTION reconciler.captured_protect, reconciler.record_in_hand, reconciler.record_first_calls, reconciler.take_in_calls, reconciler.forget_objects, reconciler.resource_gaps, reconciler.end_first_calls, reconciler.start_cursor, reconciler.raise_cursor, reconciler.require_sync, reconciler.resync_after_old_primary, reconciler.decide_parked, reconciler.owed_resources, reconciler.count_guard, reconciler.settle, reconciler.note_passed;
DROP TYPE reconciler.ledger_result;
