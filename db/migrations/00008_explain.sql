-- +goose Up

-- explain(): the story of one object, in sentences, from the user's row to the target.

-- +goose StatementBegin
-- key_parts takes an object's key apart: the inverse of key_expression. NULL for a text that is no such key.
CREATE FUNCTION reconciler.key_parts(key text, columns integer) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN columns = 1 THEN ARRAY[key]
        WHEN key ~ format('^([^/\\]|\\[/\\])*(/([^/\\]|\\[/\\])*){%s}$', columns - 1)
        THEN ARRAY(SELECT regexp_replace(m.parts[1], '\\([/\\])', '\1', 'g') FROM regexp_matches(key || '/', '((?:[^/\\]|\\[/\\])*)/', 'g') WITH ORDINALITY AS m(parts, n) ORDER BY m.n)
    END
$$;

-- revision_of is the first revision (of those kept) that a transaction's changes belong to; NULL when there is none
-- yet. What one tick sees, all later ones see, so the place is found by halving.
CREATE FUNCTION reconciler.revision_of(xid xid8) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    low    bigint;
    high   bigint;
    middle bigint;
    k      reconciler.ticks;
BEGIN
    SELECT * INTO k FROM reconciler.ticks ORDER BY revision DESC LIMIT 1;
    IF NOT FOUND OR NOT pg_visible_in_snapshot(revision_of.xid, k.snapshot) THEN
        RETURN NULL;
    END IF;
    high := k.revision;
    low := (SELECT min(revision) FROM reconciler.ticks);
    WHILE low < high LOOP
        middle := low + (high - low) / 2;
        SELECT * INTO k FROM reconciler.ticks WHERE revision <= middle ORDER BY revision DESC LIMIT 1;
        IF pg_visible_in_snapshot(revision_of.xid, k.snapshot) THEN
            high := k.revision;
        ELSE
            low := (SELECT min(revision) FROM reconciler.ticks WHERE revision > middle);
        END IF;
    END LOOP;
    RETURN high;
END
$$;

-- misfit says why a key cannot be that of any row of a resource; NULL when it can.
CREATE FUNCTION reconciler.misfit(r reconciler.resources, key text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[] := reconciler.key_parts(misfit.key, cardinality(r.key_columns));
BEGIN
    IF parts IS NULL THEN
        RETURN format('it has %s columns (%s), joined by "/", with "\" before a "/" or "\" inside one', cardinality(r.key_columns), array_to_string(r.key_columns, ', '));
    END IF;
    FOR n IN 1..cardinality(r.key_columns) LOOP
        EXECUTE format('SELECT %s', reconciler.key_value(quote_literal(parts[n]), r.key_types[n]));
    END LOOP;
    RETURN NULL;
EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
    RETURN SQLERRM;
END
$$;

-- explain_row says what the user's row asks for now. wanted: whether a running row names the target; NULL when that
-- cannot be said. It reads no spec: a viewer may not.
CREATE FUNCTION reconciler.explain_row(r reconciler.resources, target_name text, key text, OUT sentence text, OUT wanted boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO, MDY' SET "IntervalStyle" = 'iso_8601' SET extra_float_digits = 1
SET bytea_output = 'hex' SET lc_monetary = 'C' SET lc_numeric = 'C' SET lc_time = 'C' SET quote_all_identifiers = off SET xmlbinary = 'base64' SET row_security = off AS $$
DECLARE
    parts     text[] := reconciler.key_parts(explain_row.key, cardinality(r.key_columns));
    condition text;
    names     text[];
    running   integer;
BEGIN
    IF r.removed_at IS NOT NULL THEN
        wanted := false;
        sentence := format('Row: resource %s is untracked since %s; no row of it is wanted any more.', r.name, date_trunc('second', r.removed_at));
        RETURN;
    END IF;
    sentence := format('Row: %s can be no key of %s: ', quote_literal(explain_row.key), r.relation) || reconciler.misfit(r, explain_row.key) || '.';
    IF sentence IS NOT NULL THEN
        wanted := false;
        RETURN;
    END IF;
    condition := (SELECT string_agg(format('v.key_%s = %s', n, reconciler.key_value(quote_literal(parts[n]), r.key_types[n])), ' AND ' ORDER BY n)
                  FROM generate_subscripts(r.key_columns, 1) AS n);
    -- The text is compared too: '007' is a bigint, but no object's key.
    EXECUTE format('SELECT count(*), array_agg(v.target) FILTER (WHERE v.running), count(*) FILTER (WHERE v.running AND (v.target = $1 OR v.target IS NULL)) > 0 FROM reconciler.%I AS v WHERE %s AND v.key = $2',
        'desired_' || r.name, condition) INTO running, names, wanted USING target_name, explain_row.key;
    sentence := 'Row: ' || CASE
        WHEN running = 0 THEN format('%s has no row with key %s.', r.relation, quote_literal(explain_row.key))
        WHEN names IS NULL THEN format('%s has it, and it is not running, so no target is to have it.', r.relation)
        WHEN wanted AND names[1] IS NULL THEN format('%s has it, it is running and names no target, so every target is to have it.', r.relation)
        WHEN wanted THEN format('%s has it, it is running and names target %s.', r.relation, target_name)
        ELSE format('%s has it and it is running, but it names target %s, not %s.', r.relation, array_to_string(names, ', '), target_name) END
        || CASE WHEN cardinality(names) > 1 THEN format(' %s running rows share this key, so it is blocked.', cardinality(names)) ELSE '' END;
EXCEPTION
    WHEN insufficient_privilege THEN
        sentence := format('Row: role %s may not read it: %s.', current_user, SQLERRM);
    WHEN undefined_table THEN
        sentence := format('Row: %s; see SELECT * FROM reconciler.doctor();', SQLERRM);
    WHEN OTHERS THEN
        sentence := format('Row: it cannot be read: %s.', SQLERRM);
END
$$;

-- explain_event tells of the newest change in the outbox. unread: the target has not recorded it.
CREATE FUNCTION reconciler.explain_event(r reconciler.resources, t reconciler.targets, target_name text, key text, OUT sentence text, OUT unread boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    e    record;
    seen bigint;
    c    reconciler.cursors := reconciler.cursor_of(t.id);
BEGIN
    -- There is no index by object, so the search ends somewhere.
    SELECT x.xid, x.seq, x.key INTO e
    FROM (SELECT o.* FROM reconciler.outbox o ORDER BY o.xid DESC, o.seq DESC LIMIT 100000) AS x
    WHERE x.resource_id = r.id AND x.dependency_id IS NULL AND (x.key IS NULL OR x.key = explain_event.key) AND (x.target IS NULL OR x.target = target_name)
    ORDER BY x.seq DESC LIMIT 1;
    unread := false;
    IF NOT FOUND THEN
        sentence := 'Outbox: no change of it; the newest 100000 rows were looked at.';
        RETURN;
    END IF;
    seen := reconciler.revision_of(e.xid);
    unread := seen IS NULL OR c.snapshot IS NULL OR NOT pg_visible_in_snapshot(e.xid, c.snapshot);
    sentence := format('Outbox: the newest change of %s is row %s, ', CASE WHEN e.key IS NULL THEN 'the whole resource' ELSE 'it' END, e.seq) || CASE
        WHEN seen IS NULL THEN 'which has no revision yet: the leader has not seen it.'
        ELSE format('revision %s, noticed at %s; ', seen, (SELECT date_trunc('second', at) FROM reconciler.ticks WHERE revision = seen)) || CASE
            WHEN t.id IS NULL THEN 'no target of this name reads it.'
            WHEN c.revision IS NULL THEN format('%s has no cursor.', t.name)
            WHEN unread THEN format('%s has not recorded it: its cursor is at revision %s.', t.name, c.revision)
            ELSE format('%s has recorded it.', t.name) END END;
END
$$;

-- leader_text says whether any process is running: one that is takes the leadership within seconds.
CREATE FUNCTION reconciler.leader_text() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN b.at IS NULL THEN 'No process is running: start `reconciler run`.'
        WHEN NOT reconciler.lease_lives(l.owner, l.lease_ttl) THEN format('No process is running: the last one was heard of at %s; start `reconciler run`.', date_trunc('second', b.at))
        ELSE format('Process %s leads.', coalesce(i.name, l.owner::text))
    END
    FROM reconciler.leases l CROSS JOIN LATERAL reconciler.last_beat(l.owner) AS b LEFT JOIN reconciler.instances i ON i.id = l.owner WHERE l.name = 'tick'
$$;

-- explain_target says what is in the way of a whole target; NULL for nothing.
CREATE FUNCTION reconciler.explain_target(t reconciler.targets, target_name text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN t.id IS NULL THEN format('no target is named %s. %s', quote_literal(target_name), reconciler.target_names())
        WHEN NOT t.configured THEN format('no running process has %s in its config.', t.name)
        WHEN t.paused_at IS NOT NULL THEN format('%s is %s.', t.name, reconciler.pause_text(t))
        WHEN NOT reconciler.lease_lives(t.owner, t.lease_ttl) THEN format('no process works on %s. %s', t.name, reconciler.leader_text())
        WHEN t.circuit_open_since IS NOT NULL THEN format('%s %s.', t.name, reconciler.circuit_text(t))
        WHEN t.draining THEN format('all objects of %s are being deleted there, as release() asked.', t.name)
        WHEN c.revision IS NULL THEN format('%s has no cursor: a full sync is due.', t.name)
        WHEN c.revision < (SELECT s.floor_revision FROM reconciler.installation s) THEN format('%s was away longer than the outbox keeps changes: a full sync is due.', t.name)
    END
    FROM reconciler.cursor_of(t.id) AS c
$$;

-- explain_next says what will happen by itself, or what a person can do.
CREATE FUNCTION reconciler.explain_next(t reconciler.targets, l reconciler.ledger, resource text, wanted boolean, unread boolean) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN t.id IS NULL OR NOT t.configured THEN 'nothing, before a running process has this target in its config.'
        WHEN t.paused_at IS NOT NULL THEN format('nothing, before %s', reconciler.quote_call('resume', ARRAY[t.name]))
        WHEN NOT reconciler.lease_lives(t.owner, t.lease_ttl) THEN 'nothing, before a process works on the target.'
        WHEN l.held_by = 'guard' THEN format('nothing, before %s', reconciler.quote_call('approve', ARRAY[t.name]))
        WHEN l.held_by IN ('sync', 'batch') THEN 'it goes on when all deletes are counted.'
        WHEN l.held_by = 'gate' THEN 'it goes on when its rollout gets here.'
        WHEN l.state = 'blocked' AND NOT unread THEN format('nothing, before its row changes or %s', reconciler.quote_call('retry', ARRAY[t.name, resource, l.key]))
        WHEN t.circuit_open_since IS NOT NULL AND (l.state <> 'applied' OR unread) THEN 'it goes on when the target answers again.'
        WHEN l.state IN ('pending', 'failing') AND l.next_attempt_at > clock_timestamp() THEN format('the next attempt is at %s; at once: %s',
            date_trunc('second', l.next_attempt_at), reconciler.quote_call('retry', ARRAY[t.name, resource, l.key]))
        WHEN l.state IN ('pending', 'failing') THEN 'it is looked at as soon as a worker is free.'
        WHEN t.draining AND l.key IS NOT NULL THEN 'it is deleted there.'
        WHEN (reconciler.cursor_of(t.id)).revision IS NULL THEN 'the full sync looks at it.'
        WHEN unread THEN 'the target reads the change and looks at the row.'
        WHEN wanted IS NULL THEN 'its row cannot be read, so this cannot be said.'
        WHEN wanted AND l.state IS NULL OR NOT wanted AND l.wanted THEN format('no change of it was captured (were triggers off?); the next sync %s it; at once: %s',
            CASE WHEN wanted THEN 'applies' ELSE 'deletes' END, reconciler.quote_call('resync', ARRAY[t.name, resource]))
        ELSE 'nothing is to be done.'
    END
$$;

CREATE FUNCTION reconciler.explain(target text, resource text, key text) RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r       reconciler.resources;
    t       reconciler.targets;
    l       reconciler.ledger;
    a_row   record;
    a_event record;
BEGIN
    IF explain.target IS NULL OR explain.resource IS NULL OR explain.key IS NULL THEN
        RAISE EXCEPTION 'explain takes a target, a resource and a key; none of them may be NULL' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    SELECT * INTO r FROM reconciler.resources x WHERE x.name = explain.resource;
    SELECT * INTO t FROM reconciler.targets x WHERE x.name = explain.target;
    IF r.id IS NULL THEN
        RETURN NEXT format('Resource: nothing is tracked under the name %s. %s', quote_literal(explain.resource), reconciler.resource_names());
        RETURN QUERY SELECT 'Target: ' || reconciler.explain_target(t, explain.target) WHERE t.id IS NULL;
        RETURN;
    END IF;
    SELECT * INTO l FROM reconciler.ledger x WHERE x.target_id = t.id AND x.resource_id = r.id AND x.key = explain.key;
    SELECT * INTO a_row FROM reconciler.explain_row(r, explain.target, explain.key);
    SELECT * INTO a_event FROM reconciler.explain_event(r, t, explain.target, explain.key);
    RETURN NEXT a_row.sentence;
    RETURN NEXT a_event.sentence;
    RETURN NEXT 'Ledger: ' || CASE
        WHEN l.key IS NULL THEN 'the target does not have it, as far as is known.'
        WHEN l.state = 'applied' THEN format('applied%s%s.', ' at ' || date_trunc('second', l.applied_at), ', revision ' || l.applied_revision)
        ELSE format('%s: %s.', l.state, rtrim(reconciler.reason(l, t, r.name), ';')) || CASE WHEN l.present AND l.applied_revision IS NOT NULL THEN format(' The target has revision %s.', l.applied_revision) ELSE '' END END;
    RETURN QUERY SELECT 'Observed: ' || s FROM reconciler.explain_observed(t.id, r, explain.key) AS s WHERE s IS NOT NULL;
    RETURN QUERY SELECT 'Target: ' || s FROM reconciler.explain_target(t, explain.target) AS s WHERE s IS NOT NULL;
    RETURN NEXT 'Next: ' || reconciler.explain_next(t, l, r.name, a_row.wanted AND t.draining IS NOT TRUE, a_event.unread);
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.key_parts IS 'Internal: takes an object''s key apart.';
COMMENT ON FUNCTION reconciler.revision_of IS 'The first revision that the changes of a transaction belong to; NULL when it has none yet.';
COMMENT ON FUNCTION reconciler.misfit IS 'Internal: why a key can be no row''s.';
COMMENT ON FUNCTION reconciler.explain_row IS 'Internal: what the user''s row asks for.';
COMMENT ON FUNCTION reconciler.explain_event IS 'Internal: the newest change of an object.';
COMMENT ON FUNCTION reconciler.explain_target IS 'Internal: what is in the way of a target.';
COMMENT ON FUNCTION reconciler.leader_text IS 'Internal: whether a process is running.';
COMMENT ON FUNCTION reconciler.explain_next IS 'Internal: what happens next with an object, or what a person can do.';
COMMENT ON FUNCTION reconciler.explain IS 'The story of one object in sentences: its row, its newest change, the ledger, what a client of a stream reported, the target, and what happens next.';

-- +goose Down
DROP FUNCTION reconciler.explain, reconciler.explain_next, reconciler.leader_text, reconciler.explain_target, reconciler.explain_event,
    reconciler.explain_row, reconciler.misfit, reconciler.revision_of, reconciler.key_parts;
