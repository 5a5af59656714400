-- +goose Up

-- wait(): everything that was committed before the call is applied.

-- +goose StatementBegin
-- covering_revision is the newest revision if every outbox row that this snapshot sees belongs to one; NULL if not.
-- Between the transactions in progress it looks for one row at a time, with ORDER BY and LIMIT: the rows of one that is
-- open, maybe millions, are not even touched. Nor does a plan of the time when the outbox was empty, which the session that
-- waits has kept, turn into a scan of all of it.
CREATE FUNCTION reconciler.covering_revision(seen pg_snapshot) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
BEGIN
    RETURN (WITH newest AS MATERIALIZED (
        SELECT k.revision, k.snapshot, pg_snapshot_xmax(k.snapshot) AS xmax FROM reconciler.ticks k ORDER BY k.revision DESC LIMIT 1
    ), gaps AS MATERIALIZED (
        SELECT coalesce(lag(e) OVER (ORDER BY e), '0') AS above, e AS below
        FROM (SELECT x FROM pg_snapshot_xip(seen) AS x UNION ALL SELECT pg_snapshot_xmax(seen)) AS ends(e)
    )
    SELECT coalesce((SELECT revision FROM newest), 0)
    WHERE NOT EXISTS (
        SELECT FROM gaps g CROSS JOIN LATERAL (
            SELECT FROM reconciler.outbox o WHERE o.xid > g.above AND o.xid < g.below AND o.xid >= coalesce((SELECT xmax FROM newest), '0')
            ORDER BY o.xid, o.seq LIMIT 1) AS found
    ) AND NOT EXISTS (
        SELECT FROM newest n CROSS JOIN LATERAL pg_snapshot_xip(n.snapshot) AS late
        CROSS JOIN LATERAL (SELECT FROM reconciler.outbox o WHERE o.xid = late ORDER BY o.xid, o.seq LIMIT 1) AS found
        WHERE pg_visible_in_snapshot(late, seen)
    ));
END
$$;

-- awaited returns whether wait() waits for a sync. It does not wait for one of the interval or of a watch, which is only a check,
-- nor for one that resync() requests later. All others run because it is not known what the target has (the first, after a restore).
CREATE FUNCTION reconciler.awaited(s reconciler.sync_runs, asked_at timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT s.reason NOT IN ('interval', 'watch') AND (s.reason <> 'resync' OR s.requested_at <= asked_at) $$;

-- still_moving says whether waiting can help: something that is to be applied up to a revision is on its way.
-- An object that was applied at that revision or later, and changed again since, is not waited for.
CREATE FUNCTION reconciler.still_moving(only_target text, revision bigint, asked_at timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM reconciler.targets t CROSS JOIN LATERAL reconciler.cursor_of(t.id) AS c
        WHERE t.configured AND (only_target IS NULL OR t.name = only_target) AND (
            c.revision IS NULL OR c.revision < still_moving.revision
            OR EXISTS (SELECT FROM reconciler.sync_runs s WHERE s.target_id = t.id AND s.state IN ('requested', 'running') AND reconciler.awaited(s, asked_at))
            OR t.paused_at IS NULL AND (
                EXISTS (SELECT FROM reconciler.ledger l WHERE l.target_id = t.id AND l.state IN ('pending', 'failing')
                        AND (l.applied_revision < still_moving.revision OR l.desired_revision <= still_moving.revision OR l.applied_revision IS NULL))
                OR EXISTS (SELECT FROM reconciler.ledger l WHERE l.target_id = t.id AND l.state = 'held' AND l.held_by NOT IN ('pause', 'guard')
                        AND (l.held_by <> 'gate' OR reconciler.gate_moves(l))))));
END
$$;

-- wanting is the name of a resource with a running row that names this target; NULL for none. A resource whose rows
-- cannot be read counts: nobody can say that it wants nothing.
CREATE FUNCTION reconciler.wanting(target_name text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO, MDY' SET "IntervalStyle" = 'iso_8601' SET extra_float_digits = 1
SET bytea_output = 'hex' SET lc_monetary = 'C' SET lc_numeric = 'C' SET lc_time = 'C' SET quote_all_identifiers = off SET xmlbinary = 'base64' SET row_security = off AS $$
DECLARE
    resource text;
    wants    boolean;
BEGIN
    FOR resource IN SELECT r.name FROM reconciler.resources r WHERE r.removed_at IS NULL ORDER BY r.name LOOP
        BEGIN
            EXECUTE format('SELECT EXISTS (SELECT FROM reconciler.%I AS v WHERE v.target = $1 AND v.running)', 'desired_' || resource) INTO wants USING target_name;
        EXCEPTION WHEN OTHERS THEN
            wants := true;
        END;
        IF wants THEN
            RETURN resource;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- left_alone says whether an object is still not as its row asks that a sync has left as it is: no call for it was recorded since.
CREATE FUNCTION reconciler.left_alone(d reconciler.drift_found) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT d.unapplied AND CASE WHEN d.kind = 'stale'
        THEN EXISTS (SELECT FROM reconciler.ledger l WHERE l.target_id = d.target_id AND l.resource_id = d.resource_id AND l.key = d.key AND l.present)
        ELSE NOT EXISTS (SELECT FROM reconciler.ledger l WHERE l.target_id = d.target_id AND l.resource_id = d.resource_id AND l.key = d.key AND l.state = 'applied'
            AND l.applied_at >= coalesce((SELECT s.started_at FROM reconciler.sync_runs s WHERE s.id = d.sync_id), d.found_at)) END
$$;

-- not_applied lists what is not applied up to a revision, at most 100 rows, what may still move first.
CREATE FUNCTION reconciler.not_applied(only_target text, revision bigint, asked_at timestamptz)
RETURNS TABLE (target text, resource text, key text, state text, reason text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH t AS MATERIALIZED (
        SELECT t, t.id, t.name, c.revision AS cursor_revision, t.paused_at, reconciler.explain_target(t, t.name) AS obstacle
        FROM reconciler.targets t CROSS JOIN LATERAL reconciler.cursor_of(t.id) AS c
        WHERE t.configured AND (only_target IS NULL OR t.name = only_target)
    )
    SELECT f.target, f.resource, f.key, f.state, f.reason FROM (
        SELECT 0 AS rank, t.name AS target, NULL AS resource, NULL AS key, 'unread' AS state,
            coalesce(t.obstacle, format('its cursor is at revision %s, the changes go up to %s', t.cursor_revision, not_applied.revision)) AS reason
        FROM t WHERE t.cursor_revision IS NULL OR t.cursor_revision < not_applied.revision
        UNION ALL
        SELECT 1, t.name, r.name, NULL, 'syncing', concat_ws('; ', format('%s sync is %s', s.reason, s.state) || CASE WHEN s.state = 'requested' AND s.error IS NOT NULL THEN ' again; it failed: ' || s.error ELSE '' END, t.obstacle)
        FROM t JOIN reconciler.sync_runs s ON s.target_id = t.id LEFT JOIN reconciler.resources r ON r.id = s.resource_id
        WHERE s.state IN ('requested', 'running') AND reconciler.awaited(s, asked_at)
        UNION ALL
        SELECT CASE WHEN t.paused_at IS NULL AND (l.state IN ('pending', 'failing') OR l.held_by NOT IN ('pause', 'guard')) THEN 2 ELSE 3 END,
            t.name, r.name, l.key, l.state::text, reconciler.reason(l, t.t, r.name) || coalesce('; ' || CASE WHEN l.state <> 'blocked' AND l.held_by IS DISTINCT FROM 'pause' THEN t.obstacle END, '')
        FROM t JOIN LATERAL (SELECT x.* FROM reconciler.ledger x
            WHERE x.target_id = t.id AND x.state <> 'applied' AND (x.state NOT IN ('pending', 'failing') OR x.applied_revision < not_applied.revision OR x.desired_revision <= not_applied.revision OR x.applied_revision IS NULL)
            ORDER BY x.state IN ('pending', 'failing') DESC, x.resource_id, x.key LIMIT 100) AS l ON true
        JOIN reconciler.resources r ON r.id = l.resource_id
        UNION ALL
        SELECT 4, t.name, r.name, d.key, 'reported', format('the sync of %s has only reported it (sync_mode: report); %s', to_char(d.found_at, 'HH24:MI:SS'), reconciler.quote_call('resync', ARRAY[t.name]))
        FROM t JOIN LATERAL (SELECT x.* FROM reconciler.drift_found x WHERE x.target_id = t.id AND reconciler.left_alone(x) ORDER BY x.resource_id, x.key LIMIT 100) AS d ON true
        JOIN reconciler.resources r ON r.id = d.resource_id
        UNION ALL
        SELECT 4, t.name, NULL, NULL, 'held', h.reason
        FROM t CROSS JOIN LATERAL reconciler.agent_holds(t.name, true) AS h(reason) WHERE h.reason IS NOT NULL
        UNION ALL
        SELECT 5, n.name, w.resource, NULL, 'unknown', format('running rows name this target, and %s', reconciler.explain_target(n, n.name))
        FROM reconciler.targets n CROSS JOIN LATERAL (SELECT reconciler.wanting(n.name) AS resource) AS w
        WHERE NOT n.configured AND only_target IS NULL AND w.resource IS NOT NULL
        UNION ALL
        SELECT 5, m.target, r.name, m.key, 'blocked', m.reason
        FROM reconciler.misfits m JOIN reconciler.resources r ON r.id = m.resource_id WHERE only_target IS NULL OR m.target = only_target OR m.target IS NULL
    ) AS f
    ORDER BY f.rank, f.target, f.resource, f.key LIMIT 100
$$;

-- wait_for is wait(), whose columns have the names of its arguments, which PL/pgSQL does not take. Every statement of
-- a VOLATILE function sees what was committed before it, so that it can wait. It looks again when it has waited for another
-- tenth of the time so far: after 20 ms at first, and after 200 ms in the end.
CREATE FUNCTION reconciler.wait_for(timeout interval, only_target text)
RETURNS TABLE (target text, resource text, key text, state text, reason text, timed_out boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    asked_at timestamptz := clock_timestamp();
    deadline timestamptz := asked_at + coalesce(timeout, interval '30 seconds');
    seen     pg_snapshot;
    upto     bigint;
    expanded boolean := NOT EXISTS (SELECT FROM reconciler.dependencies);
    late     boolean := false;
    moving   boolean;
    left_    jsonb;
BEGIN
    PERFORM reconciler.check_wait(only_target);
    seen := pg_current_snapshot();
    LOOP
        upto := reconciler.covering_revision(seen);
        IF upto IS NOT NULL AND NOT expanded AND (reconciler.cursor_of(0)).revision >= upto THEN
            -- What came of changes of base tables is in the outbox now, and needs a revision of its own.
            expanded := true;
            seen := pg_current_snapshot();
            upto := reconciler.covering_revision(seen);
        END IF;
        late := clock_timestamp() >= deadline;
        IF upto IS NOT NULL AND expanded THEN
            -- One statement, so one snapshot: what is left is what was there when nothing moved any more.
            SELECT m.moving, CASE WHEN late OR NOT m.moving THEN (SELECT jsonb_agg(to_jsonb(n)) FROM reconciler.not_applied(only_target, upto, asked_at) AS n) END
            INTO moving, left_ FROM (SELECT reconciler.still_moving(only_target, upto, asked_at) AS moving) AS m;
            EXIT WHEN NOT moving;
        END IF;
        EXIT WHEN late;
        PERFORM pg_sleep(least(0.2, greatest(0.02, extract(epoch FROM clock_timestamp() - asked_at) / 10), extract(epoch FROM deadline - clock_timestamp())));
    END LOOP;
    IF upto IS NULL OR NOT expanded THEN
        RETURN QUERY SELECT only_target, NULL, NULL, 'unread', CASE WHEN upto IS NULL THEN 'changes committed before the call have no revision yet. '
            ELSE format('changes of base tables up to revision %s are not traced to objects yet. ', upto) END || reconciler.leader_text(), true;
        RETURN;
    END IF;
    RETURN QUERY SELECT n.target, n.resource, n.key, n.state, n.reason, moving
    FROM jsonb_to_recordset(coalesce(left_, '[]')) AS n(target text, resource text, key text, state text, reason text);
END
$$;

-- check_wait refuses to wait where it could not end.
CREATE FUNCTION reconciler.check_wait(only_target text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known boolean;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'wait() sees nothing new in a % transaction, so it would wait in vain', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call it by itself, without BEGIN.';
    END IF;
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'this transaction has changes of its own, which are not applied before it commits' USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'COMMIT, then call wait().';
    END IF;
    IF only_target IS NULL THEN
        RETURN;
    END IF;
    SELECT t.configured INTO known FROM reconciler.targets t WHERE t.name = only_target;
    IF known IS NULL THEN
        RAISE EXCEPTION 'no target is named %', quote_literal(only_target) USING ERRCODE = 'undefined_object', HINT = reconciler.target_names();
    ELSIF NOT known THEN
        RAISE EXCEPTION 'no running process has target % in its config, so nothing is applied there', quote_literal(only_target)
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = reconciler.target_names();
    END IF;
END
$$;

CREATE FUNCTION reconciler.wait(timeout interval DEFAULT '30 seconds', target text DEFAULT NULL)
RETURNS TABLE (target text, resource text, key text, state text, reason text, timed_out boolean)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM reconciler.wait_for($1, $2)
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.covering_revision IS 'Internal: the newest revision, if everything that a snapshot sees belongs to one.';
COMMENT ON FUNCTION reconciler.left_alone IS 'Internal: whether an object is still as a sync in report mode has left it.';
COMMENT ON FUNCTION reconciler.awaited IS 'Internal: whether wait() waits for a sync.';
COMMENT ON FUNCTION reconciler.still_moving IS 'Internal: whether waiting can help.';
COMMENT ON FUNCTION reconciler.not_applied IS 'Internal: what is not applied up to a revision.';
COMMENT ON FUNCTION reconciler.wanting IS 'Internal: a resource with running rows that name a target.';
COMMENT ON FUNCTION reconciler.wait_for IS 'Internal: wait().';
COMMENT ON FUNCTION reconciler.check_wait IS 'Internal: refuses to wait where it could not end.';
COMMENT ON FUNCTION reconciler.wait IS 'Returns without a row as soon as everything committed before the call is applied, everywhere or in one target. Else what is not and why, at most 100 rows: at the timeout, or at once when waiting cannot help.';

-- +goose Down
DROP FUNCTION reconciler.wait, reconciler.left_alone, reconciler.check_wait, reconciler.wait_for, reconciler.wanting, reconciler.not_applied, reconciler.still_moving, reconciler.awaited, reconciler.covering_revision;
