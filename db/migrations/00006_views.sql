-- +goose Up

-- What a person reads in psql. Views run with the rights of their owner, so a viewer needs none on the tables below.

-- +goose StatementBegin
-- quote_call is a statement that a person can copy. An argument from a row may be hostile: it is quoted.
CREATE FUNCTION reconciler.quote_call(name text, arguments text[]) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('SELECT reconciler.%s(%s);', name, string_agg(quote_nullable(a), ', ' ORDER BY n)) FROM unnest(arguments) WITH ORDINALITY AS u(a, n)
$$;

CREATE FUNCTION reconciler.counted(n bigint, noun text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT format('%s %s%s', n, noun, CASE WHEN n <> 1 THEN 's' END) $$;

CREATE FUNCTION reconciler.pause_text(t reconciler.targets) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN t.paused_at IS NOT NULL THEN format('paused by %s since %s%s', t.paused_by, date_trunc('second', t.paused_at), ': ' || nullif(t.paused_reason, '')) END
$$;

-- deletes_text counts deletes that wait for approve().
CREATE FUNCTION reconciler.deletes_text(n bigint, protected bigint) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN protected = n THEN reconciler.counted(n, 'protected delete')
        ELSE reconciler.counted(n, 'delete') || CASE WHEN protected > 0 THEN format(' (%s protected)', protected) ELSE '' END END
$$;

CREATE FUNCTION reconciler.guard_text(t reconciler.targets) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN t.guard_since IS NOT NULL THEN format('%s of %s held since %s; %s',
        reconciler.deletes_text(t.guard_deletes, t.guard_protected), reconciler.counted(t.guard_objects, 'object'),
        date_trunc('second', t.guard_since), reconciler.quote_call('approve', ARRAY[t.name])) END
$$;

CREATE FUNCTION reconciler.circuit_text(t reconciler.targets) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN t.circuit_open_since IS NOT NULL THEN format('does not answer since %s: %s', date_trunc('second', t.circuit_open_since), coalesce(t.circuit_error, 'no reason known')) END
$$;

-- gate_text and gate_moves are about objects that an apply holds; there are none before there are applies.
CREATE FUNCTION reconciler.gate_text(l reconciler.ledger) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT 'waits for its turn in a rollout' $$;

CREATE FUNCTION reconciler.gate_moves(l reconciler.ledger) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT true $$;

-- reason says why an object is not applied, and what would change that; NULL for an applied one.
CREATE FUNCTION reconciler.reason(l reconciler.ledger, t reconciler.targets, resource text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE l.state
        WHEN 'pending' THEN CASE
            WHEN l.last_error IS NOT NULL AND l.next_attempt_at > clock_timestamp()
                THEN format('%s%s; looked at again at %s', CASE WHEN NOT l.wanted THEN 'its delete: ' END, l.last_error, date_trunc('second', l.next_attempt_at))
            ELSE CASE WHEN l.wanted THEN 'waits for its turn' ELSE 'its delete waits for its turn' END
                || CASE WHEN l.next_attempt_at > clock_timestamp() THEN format(', not before %s', date_trunc('second', l.next_attempt_at)) ELSE '' END END
        WHEN 'failing' THEN format('attempt %s to %s it failed: %s; next attempt at %s', l.attempts, CASE WHEN l.wanted THEN 'apply' ELSE 'delete' END,
            coalesce(l.last_error, 'no reason known'), date_trunc('second', l.next_attempt_at))
        WHEN 'blocked' THEN format('cannot be %s: %s; waits for a change of its row, or %s', CASE WHEN l.wanted THEN 'applied' ELSE 'deleted' END,
            coalesce(l.last_error, 'no reason known'), reconciler.quote_call('retry', ARRAY[t.name, resource, l.key]))
        WHEN 'held' THEN CASE l.held_by
            WHEN 'pause' THEN coalesce('target is ' || reconciler.pause_text(t) || '; ' || reconciler.quote_call('resume', ARRAY[t.name]), 'held since a pause that is over; ' || reconciler.quote_call('resume', ARRAY[t.name]))
            WHEN 'guard' THEN CASE WHEN l.protected
                THEN format('waits for approval%s: %s; %s', CASE WHEN NOT l.wanted THEN ' of its delete' END,
                    coalesce(l.last_error, 'it is protected'), reconciler.quote_call('approve', ARRAY[t.name]))
                ELSE coalesce('the guard holds its delete: ' || reconciler.guard_text(t), 'the guard holds its delete; ' || reconciler.quote_call('approve', ARRAY[t.name])) END
            WHEN 'sync' THEN 'its delete waits until the running sync has counted all deletes'
            WHEN 'batch' THEN 'its delete waits until all deletes of one change are counted'
            ELSE reconciler.gate_text(l)
        END
    END
$$;

-- observed_trouble says what the clients of a stream report as failed; NULL for nothing.
CREATE FUNCTION reconciler.observed_trouble(target_id integer) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('the client reports %s failed, such as %s of %s', reconciler.counted(f.n, 'object'), quote_literal(o.key), r.name) || coalesce(': ' || o.message, '')
    FROM (SELECT count(*) AS n FROM reconciler.observations x WHERE x.target_id = observed_trouble.target_id AND x.state = 'failed') AS f
    CROSS JOIN LATERAL (SELECT y.key, y.message, y.resource_id FROM reconciler.observations y
        WHERE y.target_id = observed_trouble.target_id AND y.state = 'failed' ORDER BY y.resource_id, y.key LIMIT 1) AS o
    JOIN reconciler.resources r ON r.id = o.resource_id
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.observed_trouble IS 'Internal: what the clients of a stream report as failed.';
COMMENT ON FUNCTION reconciler.quote_call IS 'Internal: a statement to copy, with its arguments quoted.';
COMMENT ON FUNCTION reconciler.counted IS 'Internal: a number with its noun.';
COMMENT ON FUNCTION reconciler.pause_text IS 'Internal: who paused a target, since when and why.';
COMMENT ON FUNCTION reconciler.deletes_text IS 'Internal: a number of deletes that wait for approval.';
COMMENT ON FUNCTION reconciler.guard_text IS 'Internal: what the guard of a target holds.';
COMMENT ON FUNCTION reconciler.circuit_text IS 'Internal: since when a target does not answer.';
COMMENT ON FUNCTION reconciler.gate_moves IS 'Internal: whether waiting can help an object that an apply holds.';
COMMENT ON FUNCTION reconciler.gate_text IS 'Internal: which apply holds an object.';
COMMENT ON FUNCTION reconciler.reason IS 'Internal: why an object is not applied, and what would change that.';

CREATE VIEW reconciler.objects AS
SELECT t.name AS target, r.name AS resource, l.key, l.state, l.wanted, l.desired_revision, l.applied_revision, l.attempts, l.last_error,
    l.next_attempt_at, l.applied_at, l.held_by, l.present, l.protected,
    o.version AS observed_version, o.state AS observed_state, o.healthy, CASE WHEN o.version IS NOT NULL THEN greatest(o.observed_at, p.inventory_at) END AS observed_at,
    o.message AS observed_message
FROM reconciler.ledger l JOIN reconciler.targets t ON t.id = l.target_id JOIN reconciler.resources r ON r.id = l.resource_id
LEFT JOIN reconciler.observations o ON o.target_id = l.target_id AND o.resource_id = l.resource_id AND o.key = l.key LEFT JOIN reconciler.reports p ON p.target_id = l.target_id;
COMMENT ON VIEW reconciler.objects IS 'The ledger with names: every object that a target has or should have, and how far it is.';
COMMENT ON COLUMN reconciler.objects.key IS 'Key of the row as text; the columns of a composite key are joined by "/".';
COMMENT ON COLUMN reconciler.objects.state IS 'pending, applied, failing (will be tried again), blocked (waits for a new spec or retry()) or held (see held_by).';
COMMENT ON COLUMN reconciler.objects.wanted IS 'False: the object is to be deleted.';
COMMENT ON COLUMN reconciler.objects.desired_revision IS 'Revision of the newest change that is known of the object.';
COMMENT ON COLUMN reconciler.objects.applied_revision IS 'Revision that the target has; NULL when it was never applied.';
COMMENT ON COLUMN reconciler.objects.attempts IS 'Failed attempts since the last success or the last change.';
COMMENT ON COLUMN reconciler.objects.held_by IS 'For state held: pause, guard (its delete waits for approve()), sync or batch (deletes are being counted) or gate (rollout).';
COMMENT ON COLUMN reconciler.objects.present IS 'The target has the object, or may have it: true from right before the first call for it.';
COMMENT ON COLUMN reconciler.objects.protected IS 'Its delete waits for approve(): protect of track() was true or NULL for its row, or the driver asks for that.';
COMMENT ON COLUMN reconciler.objects.observed_version IS 'For streams: the version that a client reported last; NULL: none has reported the object.';
COMMENT ON COLUMN reconciler.objects.observed_state IS 'What the client reported of it: applied, progressing, failed or absent.';
COMMENT ON COLUMN reconciler.objects.healthy IS 'Whether it is healthy, as the client reported; NULL: not reported.';
COMMENT ON COLUMN reconciler.objects.observed_at IS 'When a report named it last, by the clock of this server.';

-- Objects are counted in columns of their own: a query that leaves them out does not pay for them.
CREATE VIEW reconciler.agents AS
SELECT coalesce(p.client_name, p.session) AS name, p.client_version AS version, p.client_driver AS driver, t.name AS target,
    p.session_since AS since, p.reported_at AS last_report,
    (SELECT count(*) FROM reconciler.observations o WHERE o.target_id = p.target_id AND o.state <> 'absent') AS objects,
    (SELECT count(*) FROM reconciler.observations o WHERE o.target_id = p.target_id AND o.state = 'failed') AS failing,
    p.held, coalesce(p.trouble, CASE WHEN NOT p.healthy THEN 'the far side is not healthy' END) AS trouble
FROM reconciler.reports p JOIN reconciler.targets t ON t.id = p.target_id
WHERE p.held IS NOT NULL;
COMMENT ON VIEW reconciler.agents IS 'Agents: one row for each stream whose newest session has sent a client member in a report.';
COMMENT ON COLUMN reconciler.agents.name IS 'As the agent names itself, or else its session.';
COMMENT ON COLUMN reconciler.agents.since IS 'When the first report of its session came.';
COMMENT ON COLUMN reconciler.agents.last_report IS 'When its last report came, by the clock of this server. `reconciler agent` reports each minute.';
COMMENT ON COLUMN reconciler.agents.objects IS 'Objects that it has reported, without those that are absent.';
COMMENT ON COLUMN reconciler.agents.failing IS 'Objects that it has reported as failed.';
COMMENT ON COLUMN reconciler.agents.held IS 'Deletes that wait for approval there: approve() of the target releases them.';
COMMENT ON COLUMN reconciler.agents.trouble IS 'What keeps it from its work, such as an open circuit.';

-- +goose StatementBegin
-- agent_holds says what the guard of a target's agent holds; NULL for nothing. With acked: of a stream whose objects
-- count as applied only when a client has reported them. (PL/pgSQL, because streams come later.)
CREATE FUNCTION reconciler.agent_holds(target text, acked boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT format('the guard of agent %s holds %s; %s', a.name, reconciler.counted(a.held, 'delete'),
            reconciler.quote_call('approve', ARRAY[a.target]))
        FROM reconciler.agents a
        WHERE a.target = agent_holds.target AND a.held > 0
          AND (NOT acked OR EXISTS (SELECT FROM reconciler.streams s JOIN reconciler.targets t ON t.id = s.target_id
            WHERE s.ack AND t.name = a.target)));
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.agent_holds IS 'Internal: what the guard of an agent holds.';

CREATE VIEW reconciler.failing AS
SELECT o.target, o.resource, o.key, o.state, o.wanted, o.attempts, o.last_error, o.next_attempt_at
FROM reconciler.objects o WHERE o.state IN ('failing', 'blocked');
COMMENT ON VIEW reconciler.failing IS 'Objects whose last attempt failed. failing ones are tried again at next_attempt_at; blocked ones wait for a new spec or retry().';

CREATE VIEW reconciler.held AS
SELECT t.name AS target, r.name AS resource, l.key, l.wanted, l.held_by, reconciler.reason(l, t, r.name) AS reason
FROM reconciler.ledger l JOIN reconciler.targets t ON t.id = l.target_id JOIN reconciler.resources r ON r.id = l.resource_id
WHERE l.state = 'held'
UNION ALL
SELECT t.name, NULL, NULL, false, 'agent', h.reason
FROM reconciler.targets t CROSS JOIN LATERAL reconciler.agent_holds(t.name) AS h(reason) WHERE h.reason IS NOT NULL;
COMMENT ON VIEW reconciler.held IS 'Objects that wait for a person or for a sync, and for what.';
COMMENT ON COLUMN reconciler.held.resource IS 'NULL: deletes that the guard of the target''s agent holds, one row for all of them.';

CREATE VIEW reconciler.drift AS
SELECT t.name AS target, r.name AS resource, d.key, d.kind, d.found_at, d.sync_id
FROM reconciler.drift_found d JOIN reconciler.targets t ON t.id = d.target_id JOIN reconciler.resources r ON r.id = d.resource_id;
COMMENT ON VIEW reconciler.drift IS 'What the last sync in report mode found in each target and left as it was.';
COMMENT ON COLUMN reconciler.drift.kind IS 'missing: wanted, not there; different: there with another content; orphan: there, known to nobody; stale: there, no longer wanted.';

CREATE VIEW reconciler.syncs AS
SELECT s.id, t.name AS target, r.name AS resource, s.reason, s.mode, s.verify, s.state, s.requested_at, s.requested_by, s.started_at, s.finished_at,
    date_trunc('milliseconds', coalesce(s.finished_at, clock_timestamp()) - s.started_at) AS duration,
    s.rows, s.upserts, s.tombstones, s.drifted, s.held, s.at_resource, s.at_key, s.error
FROM reconciler.sync_runs s JOIN reconciler.targets t ON t.id = s.target_id LEFT JOIN reconciler.resources r ON r.id = s.resource_id
WHERE s.resource_id IS NULL OR r.id IS NOT NULL; -- those of a resource that has gone go with the next house-keeping
COMMENT ON VIEW reconciler.syncs IS 'Syncs: requested, running and past. A resource of NULL means all of them.';
COMMENT ON COLUMN reconciler.syncs.verify IS 'Every object is applied or compared again, also those whose hash did not change.';
COMMENT ON COLUMN reconciler.syncs.rows IS 'Running rows read so far.';
COMMENT ON COLUMN reconciler.syncs.upserts IS 'Objects found to be applied.';
COMMENT ON COLUMN reconciler.syncs.tombstones IS 'Objects found that no running row wants.';
COMMENT ON COLUMN reconciler.syncs.drifted IS 'Objects that the target did not have as the ledger says.';
COMMENT ON COLUMN reconciler.syncs.held IS 'Deletes that the guard held.';
COMMENT ON COLUMN reconciler.syncs.error IS 'Why it failed; of a requested one that stands for one that failed, why that did; of a complete full sync, which resources could not be read: they have a sync of their own.';
COMMENT ON COLUMN reconciler.syncs.at_key IS 'Where a running sync is.';

CREATE VIEW reconciler.target_cursors AS
SELECT t.id AS target_id, t.name AS target, c.revision, c.snapshot, c.batch_revision, c.batch_snapshot, c.batch_xid, c.batch_seq, c.at
FROM reconciler.targets t CROSS JOIN LATERAL reconciler.cursor_of(t.id) AS c;
COMMENT ON VIEW reconciler.target_cursors IS 'Internal: how far each target has recorded the outbox; see outbox_lag.';
COMMENT ON COLUMN reconciler.target_cursors.revision IS 'Every change up to here is recorded in the ledger. NULL: no cursor, a full sync is due.';
COMMENT ON COLUMN reconciler.target_cursors.batch_revision IS 'The batch being read goes up to here; batch_xid and batch_seq are the place inside it.';
COMMENT ON COLUMN reconciler.target_cursors.at IS 'When the cursor moved last.';

-- Outbox rows past the cursors. Processes read once for all targets that stand at one place, and so does this. Both
-- halves walk the index (xid, seq): ORDER BY with LIMIT keeps the planner from scanning a part of a million rows.
-- A transaction still open is left out by its id: its rows, maybe millions, are not even touched.
-- Inside a batch that is being read the place is not looked at: rows may be shown a little longer than they wait.
CREATE VIEW reconciler.past_cursors AS
SELECT c.cursor_revision, o.xid, o.seq, o.target, o.resource_id, o.key, o.dependency_id
FROM (SELECT DISTINCT ON (t.revision) t.revision AS cursor_revision, t.snapshot AS cursor_snapshot FROM reconciler.target_cursors t WHERE t.revision IS NOT NULL) AS c
CROSS JOIN LATERAL (
    (SELECT y.* FROM pg_snapshot_xip(c.cursor_snapshot) AS late
     CROSS JOIN LATERAL (SELECT x.xid, x.seq, x.target, x.resource_id, x.key, x.dependency_id FROM reconciler.outbox x
                         WHERE x.xid = late ORDER BY x.xid, x.seq LIMIT 100000) AS y
     WHERE pg_visible_in_snapshot(late, pg_current_snapshot()) LIMIT 100000)
    UNION ALL
    (SELECT x.xid, x.seq, x.target, x.resource_id, x.key, x.dependency_id FROM reconciler.outbox x
     WHERE x.xid >= pg_snapshot_xmax(c.cursor_snapshot) AND x.xid < pg_snapshot_xmax(pg_current_snapshot()) ORDER BY x.xid, x.seq LIMIT 100000)
) AS o;
COMMENT ON VIEW reconciler.past_cursors IS 'Internal: outbox rows past each place that a cursor stands at, at most 100000 of those in progress then and 100000 newer ones.';

CREATE VIEW reconciler.pending AS
WITH unread AS (
    -- A row may say "all of the resource" (no key) or "whatever depends on this" (dependency_id; no key either).
    SELECT t.id AS target_id, t.name AS target, p.resource_id, p.key COLLATE "C" AS key, min(p.seq) AS seq
    FROM reconciler.past_cursors p JOIN reconciler.target_cursors c ON c.revision = p.cursor_revision AND (p.target IS NULL OR p.target = c.target)
    JOIN reconciler.targets t ON t.id = c.target_id
    WHERE t.configured
    GROUP BY t.id, t.name, p.resource_id, p.key COLLATE "C"
)
SELECT t.name AS target, r.name AS resource, l.key, l.state, l.wanted, l.desired_revision, l.attempts, l.next_attempt_at, reconciler.reason(l, t, r.name) AS reason
FROM reconciler.ledger l JOIN reconciler.targets t ON t.id = l.target_id JOIN reconciler.resources r ON r.id = l.resource_id
WHERE l.state <> 'applied'
UNION ALL
SELECT u.target, r.name, u.key, 'pending', NULL, NULL, 0, NULL,
    CASE WHEN u.key IS NULL THEN 'a change of all or some objects is in the outbox' ELSE 'a change is in the outbox' END
FROM unread u JOIN reconciler.resources r ON r.id = u.resource_id
WHERE NOT EXISTS (SELECT FROM reconciler.ledger l WHERE l.target_id = u.target_id AND l.resource_id = u.resource_id AND l.key = u.key AND l.state <> 'applied');
COMMENT ON VIEW reconciler.pending IS 'What is on its way: objects that are not applied, and objects with a change in the outbox that is not recorded yet. A key of NULL stands for more than one object.';
COMMENT ON COLUMN reconciler.pending.wanted IS 'NULL for a change in the outbox: the row is looked at when its turn comes.';
COMMENT ON COLUMN reconciler.pending.reason IS 'Why it is not applied, and what would change that.';

CREATE VIEW reconciler.outbox_lag AS
SELECT t.target, t.revision AS cursor_revision, newest.revision AS newest_revision, CASE WHEN t.revision IS NOT NULL THEN greatest(newest.revision - t.revision, 0) END AS revisions,
    round(CASE WHEN t.revision IS NULL THEN NULL ELSE coalesce(extract(epoch FROM clock_timestamp() - missed.at), 0) END::numeric, 3)::double precision AS seconds,
    CASE WHEN t.revision IS NULL THEN NULL ELSE coalesce(p.rows, 0) END AS rows,
    t.revision < (SELECT s.floor_revision FROM reconciler.installation s) AS below_floor
FROM reconciler.target_cursors t
LEFT JOIN (SELECT max(k.revision) AS revision FROM reconciler.ticks k) AS newest ON true
LEFT JOIN LATERAL (SELECT k.at FROM reconciler.ticks k WHERE k.revision > t.revision ORDER BY k.revision LIMIT 1) AS missed ON true
LEFT JOIN (SELECT u.target_id, count(*) AS rows FROM reconciler.past_cursors p JOIN reconciler.target_cursors u ON u.revision = p.cursor_revision AND (p.target IS NULL OR p.target = u.target)
           GROUP BY u.target_id) AS p ON p.target_id = t.target_id;
COMMENT ON VIEW reconciler.outbox_lag IS 'How far each target is behind the outbox. NULL: it has no cursor, a full sync is due.';
COMMENT ON COLUMN reconciler.outbox_lag.seconds IS 'Age of the oldest revision that the target has not recorded.';
COMMENT ON COLUMN reconciler.outbox_lag.rows IS 'Outbox rows past the cursor that concern the target; counting ends at 100000 rows of the outbox.';
COMMENT ON COLUMN reconciler.outbox_lag.below_floor IS 'Retention removed rows that the target had not read: it is synced in full.';

CREATE VIEW reconciler.configured_targets AS
SELECT unnest(c.targets) AS target FROM reconciler.configs c UNION SELECT unnest(i.targets) FROM reconciler.instances i;
COMMENT ON VIEW reconciler.configured_targets IS 'Internal: what targets.configured is kept equal to. Stopped is not removed: a process that stops or dies takes nothing away.';

CREATE VIEW reconciler.failing_loops AS
SELECT i.name AS process, f.loop ->> 'loop' AS loop, nullif(f.loop ->> 'target', '') AS target,
    b.at - make_interval(secs => (f.loop ->> 'for')::float8) AS since,
    b.at - make_interval(secs => (f.loop ->> 'last')::float8) AS failed_at,
    (f.loop ->> 'failures')::bigint AS failures, f.loop ->> 'error' AS error,
    (f.loop ->> 'target' = '' AND i.id = (SELECT l.owner FROM reconciler.leases l WHERE l.name = 'tick')) AS leader,
    i.id AS instance
FROM reconciler.instances i CROSS JOIN LATERAL reconciler.last_beat(i.id) AS b
CROSS JOIN LATERAL jsonb_array_elements(b.failing) AS f(loop);
COMMENT ON VIEW reconciler.failing_loops IS 'Parts of running processes that have been failing for seconds. No row: everything works.';
COMMENT ON COLUMN reconciler.failing_loops.loop IS 'Which part: tick, expand, open, retain and others of the leader; heartbeat, listen and others of every process; read, dispatch, settle, sync and others of the owner of a target; rows: those of some resource cannot be read; watch: drift waits for a sync.';
COMMENT ON COLUMN reconciler.failing_loops.target IS 'NULL: the part works for the whole process.';
COMMENT ON COLUMN reconciler.failing_loops.leader IS 'The process leads: what fails in it concerns every target.';
COMMENT ON COLUMN reconciler.failing_loops.error IS 'The last error, without values of rows.';

CREATE VIEW reconciler.status AS
SELECT t.name AS target,
    CASE
        -- Not while a process works on it that fails to say that it lists it.
        WHEN NOT t.configured AND (broke.error IS NULL OR NOT reconciler.lease_lives(t.owner, t.lease_ttl)) THEN 'unknown'
        WHEN t.paused_at IS NOT NULL THEN 'paused'
        WHEN NOT reconciler.lease_lives(t.owner, t.lease_ttl) THEN 'unowned'
        WHEN broke.stops THEN 'error'
        WHEN t.circuit_open_since IS NOT NULL THEN 'down'
        WHEN t.guard_since IS NOT NULL OR l.stopped > 0 OR reconciler.agent_holds(t.name) IS NOT NULL THEN 'held'
        WHEN l.failing + l.blocked > 0 THEN 'failing'
        WHEN broke.error IS NOT NULL THEN 'error'
        WHEN t.draining THEN 'draining'
        WHEN c.revision IS NULL OR c.revision < (SELECT s.floor_revision FROM reconciler.installation s) OR y.sync IS NOT NULL THEN 'syncing'
        WHEN l.pending + l.held > 0 OR c.revision < newest.revision THEN 'pending'
        ELSE 'ok'
    END AS state,
    t.driver, i.name AS owner, coalesce(l.objects, 0) AS objects, coalesce(l.applied, 0) AS applied, coalesce(l.pending, 0) AS pending,
    coalesce(l.failing, 0) AS failing, coalesce(l.blocked, 0) AS blocked, coalesce(l.held, 0) AS held,
    CASE WHEN c.revision IS NOT NULL THEN greatest(newest.revision - c.revision, 0) END AS lag,
    round(CASE WHEN c.revision IS NULL THEN NULL ELSE coalesce(extract(epoch FROM clock_timestamp() - missed.at), 0) END::numeric, 3)::double precision AS lag_seconds,
    least(missed.at, (SELECT k.at FROM reconciler.ticks k WHERE k.revision >= l.oldest_revision ORDER BY k.revision LIMIT 1)) AS oldest_pending,
    done.finished_at AS last_sync, y.sync, reconciler.pause_text(t) AS paused,
    coalesce(reconciler.guard_text(t), CASE WHEN l.stopped > 0 THEN format('%s held; %s', reconciler.deletes_text(l.stopped, l.protected), reconciler.quote_call('approve', ARRAY[t.name])) END, reconciler.agent_holds(t.name)) AS guard,
    reconciler.circuit_text(t) AS circuit,
    coalesce(t.trouble, (SELECT format('agent %s: %s', a.name, a.trouble) FROM reconciler.agents a WHERE a.target = t.name AND a.trouble IS NOT NULL),
        reconciler.observed_trouble(t.id)) AS trouble, coalesce(broke.error, t.circuit_error, l.error, broken.error) AS last_error
FROM reconciler.targets t
CROSS JOIN LATERAL reconciler.cursor_of(t.id) AS c
LEFT JOIN (SELECT max(k.revision) AS revision FROM reconciler.ticks k) AS newest ON true
LEFT JOIN LATERAL (SELECT k.at FROM reconciler.ticks k WHERE k.revision > c.revision ORDER BY k.revision LIMIT 1) AS missed ON true
LEFT JOIN reconciler.instances i ON i.id = t.owner AND reconciler.lease_lives(t.owner, t.lease_ttl)
LEFT JOIN (
    SELECT x.target_id, count(*) AS objects,
        count(*) FILTER (WHERE x.state = 'applied') AS applied, count(*) FILTER (WHERE x.state = 'pending') AS pending,
        count(*) FILTER (WHERE x.state = 'failing') AS failing, count(*) FILTER (WHERE x.state = 'blocked') AS blocked,
        count(*) FILTER (WHERE x.state = 'held') AS held, count(*) FILTER (WHERE x.held_by = 'guard') AS stopped,
        count(*) FILTER (WHERE x.held_by = 'guard' AND x.protected) AS protected,
        min(nullif(x.desired_revision, 0)) FILTER (WHERE x.state IN ('pending', 'failing')) AS oldest_revision,
        mode() WITHIN GROUP (ORDER BY x.last_error) FILTER (WHERE x.state IN ('failing', 'blocked')) AS error
    FROM reconciler.ledger x GROUP BY x.target_id
) AS l ON l.target_id = t.id
LEFT JOIN LATERAL (SELECT x.id, x.finished_at FROM reconciler.sync_runs x WHERE x.target_id = t.id AND x.resource_id IS NULL AND x.state = 'complete' ORDER BY x.id DESC LIMIT 1) AS done ON true
LEFT JOIN LATERAL (
    SELECT x.error FROM reconciler.sync_runs x WHERE x.target_id = t.id AND x.state = 'failed' AND x.id > coalesce(done.id, 0)
      AND NOT EXISTS (SELECT FROM reconciler.sync_runs z
                      WHERE z.target_id = t.id AND z.resource_id = x.resource_id AND z.state = 'complete' AND z.id > x.id)
    ORDER BY x.id DESC LIMIT 1
) AS broken ON true
LEFT JOIN LATERAL (
    SELECT string_agg(format('%s sync%s %s', x.reason, ' of ' || r.name, CASE x.state
        WHEN 'requested' THEN format('requested by %s at %s', x.requested_by, date_trunc('second', x.requested_at)) || coalesce(', again at ' || date_trunc('second', x.not_before), '')
        ELSE format('since %s: %s rows read, %s to apply, %s to delete%s', date_trunc('second', x.started_at), x.rows, x.upserts, x.tombstones,
                    ', at ' || x.at_resource || coalesce('/' || x.at_key, '')) END), '; ' ORDER BY x.state DESC, x.id) AS sync
    FROM reconciler.sync_runs x LEFT JOIN reconciler.resources r ON r.id = x.resource_id WHERE x.target_id = t.id AND x.state IN ('requested', 'running')
) AS y ON true
LEFT JOIN LATERAL (
    SELECT format('%s of %s has been failing since %s: %s', f.loop, f.process, date_trunc('second', f.since), f.error) AS error,
        f.loop NOT IN ('rows', 'watch') AS stops -- of others some resource waits, or only the repair of drift: what is more urgent comes first
    FROM reconciler.failing_loops f WHERE f.target = t.name AND f.instance = t.owner OR f.target IS NULL AND (f.instance = t.owner OR f.leader)
    ORDER BY f.loop = 'rows', f.loop = 'watch', f.target IS NULL, f.since, f.loop LIMIT 1
) AS broke ON true;
COMMENT ON VIEW reconciler.status IS 'One row for each target: is everything there, and if not, what is in the way.';
COMMENT ON COLUMN reconciler.status.state IS 'The first state that applies: unknown (in no running process''s config), paused, unowned (no process works on it), error (a part of its process fails again and again), down (does not answer), held (waits for a person), failing, error (rows of a resource cannot be read, or the watch of the target fails), draining, syncing, pending, ok.';
COMMENT ON COLUMN reconciler.status.owner IS 'Process that works on the target.';
COMMENT ON COLUMN reconciler.status.lag IS 'Revisions that are not recorded yet; NULL: no cursor, a full sync is due.';
COMMENT ON COLUMN reconciler.status.lag_seconds IS 'Age of the oldest revision that is not recorded.';
COMMENT ON COLUMN reconciler.status.oldest_pending IS 'When the oldest change that is not applied was noticed.';
COMMENT ON COLUMN reconciler.status.last_sync IS 'When the last complete sync of all resources ended.';
COMMENT ON COLUMN reconciler.status.sync IS 'Syncs that run or wait, and how far they are.';
COMMENT ON COLUMN reconciler.status.guard IS 'Deletes that wait for approve(), here or at the agent.';
COMMENT ON COLUMN reconciler.status.circuit IS 'Since when the target does not answer.';
COMMENT ON COLUMN reconciler.status.trouble IS 'What fails although every object is there: work that the driver does after its calls, such as a reload command; or the trouble of its agent; or what clients of a stream report as failed.';
COMMENT ON COLUMN reconciler.status.last_error IS 'What fails in its process, else why the target does not answer, else the most frequent error of its objects, else of its last sync.';

-- +goose Down
DROP VIEW reconciler.status, reconciler.failing_loops, reconciler.configured_targets, reconciler.outbox_lag, reconciler.pending, reconciler.past_cursors, reconciler.target_cursors, reconciler.syncs, reconciler.drift,
    reconciler.held, reconciler.failing, reconciler.agents, reconciler.objects;
DROP FUNCTION reconciler.agent_holds, reconciler.observed_trouble, reconciler.reason, reconciler.gate_moves, reconciler.gate_text, reconciler.circuit_text, reconciler.guard_text, reconciler.deletes_text, reconciler.pause_text, reconciler.counted, reconciler.quote_call;
