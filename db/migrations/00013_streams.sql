-- +goose Up

-- Streams: targets with the driver `stream`. Their owner publishes objects to a table, which remote clients follow.

CREATE TABLE reconciler.streams (
    target_id integer PRIMARY KEY REFERENCES reconciler.targets ON DELETE CASCADE,
    id        uuid NOT NULL DEFAULT gen_random_uuid(),
    epoch     uuid NOT NULL DEFAULT gen_random_uuid(),
    complete  boolean NOT NULL DEFAULT false,
    floor     bigint NOT NULL DEFAULT 0,
    history   interval NOT NULL,
    ack       boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE reconciler.streams IS 'One row for each target with driver stream.';
COMMENT ON COLUMN reconciler.streams.id IS 'Identifies the stream: a target that is released and comes back begins another one.';
COMMENT ON COLUMN reconciler.streams.epoch IS 'Changes after a restore, dump and reload, or a failover that lost commits: versions of another epoch mean nothing.';
COMMENT ON COLUMN reconciler.streams.complete IS 'A full sync of this epoch has published every object. Until then an object that is not published may still exist.';
COMMENT ON COLUMN reconciler.streams.floor IS 'Tombstones up to this version may be gone: a client that has read less far must read everything again.';
COMMENT ON COLUMN reconciler.streams.history IS 'How long tombstones are kept.';
COMMENT ON COLUMN reconciler.streams.ack IS 'An object counts as applied when a client has reported its published version as applied, a deleted one as absent.';

CREATE SEQUENCE reconciler.published_seq AS bigint CACHE 1;
CREATE TABLE reconciler.published (
    -- No foreign key: a check for each new object would double the cost of the first sync.
    target_id integer NOT NULL,
    resource  text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    version   bigint NOT NULL,
    revision  bigint NOT NULL,
    spec      jsonb,
    hash      bytea CHECK (octet_length(hash) = 16),
    -- Of the text: pg_column_size would be that of the compressed value, and octet_length(spec::text) would decompress it.
    bytes     integer NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- An object has one row. With the version, a lookup that begins at the newest one is not slowed down by dead rows that an
    -- open transaction keeps.
    PRIMARY KEY (target_id, resource, key, version),
    CHECK (version > 0),
    CHECK ((spec IS NULL) = (hash IS NULL)),
    CHECK ((spec IS NULL) = (bytes = 0))
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05);
-- Partial, so that only reads by version can use it (they ask for version > 0), and none by key, whatever the planner expects.
CREATE INDEX published_version ON reconciler.published (target_id, version) WHERE version > 0;
CREATE INDEX published_tombstones ON reconciler.published (target_id, version) WHERE spec IS NULL;
COMMENT ON TABLE reconciler.published IS 'The newest version of each object of each stream. Within one target, versions become visible in their order; across targets they do not.';
COMMENT ON COLUMN reconciler.published.version IS 'Grows with each change within a target.';
COMMENT ON COLUMN reconciler.published.revision IS 'The newest revision that was known when the row was read.';
COMMENT ON COLUMN reconciler.published.spec IS 'NULL: the object was deleted (a tombstone).';
COMMENT ON COLUMN reconciler.published.hash IS 'First 16 bytes of the SHA-256 of spec::text.';
COMMENT ON COLUMN reconciler.published.bytes IS 'Length of spec::text; 0 for a tombstone.';

CREATE TABLE reconciler.stream_watches (
    instance_id uuid NOT NULL REFERENCES reconciler.instances ON DELETE CASCADE,
    target_id   integer NOT NULL REFERENCES reconciler.targets ON DELETE CASCADE,
    watchers    integer NOT NULL CHECK (watchers > 0),
    behind      bigint NOT NULL,
    resets      bigint NOT NULL,
    CONSTRAINT stream_watches_pkey PRIMARY KEY (target_id, instance_id)
);
CREATE INDEX stream_watches_instance ON reconciler.stream_watches (instance_id);
COMMENT ON TABLE reconciler.stream_watches IS 'Which processes serve watchers of which streams; see the view reconciler.stream_watchers.';

-- Not columns of reconciler.streams, which the owner and the leader write: a command in a transaction that stays open would block them.
CREATE TABLE reconciler.stream_controls (
    target_id integer PRIMARY KEY REFERENCES reconciler.targets ON DELETE CASCADE,
    pauses    bigint NOT NULL DEFAULT 0,
    resyncs   bigint NOT NULL DEFAULT 0,
    retries   bigint NOT NULL DEFAULT 0,
    approvals bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE reconciler.stream_controls IS 'How often pause() or resume(), resync(), retry() and approve() were called for each stream: its clients obey when a number has changed.';

CREATE VIEW reconciler.stream_watchers WITH (security_barrier) AS
SELECT i.name AS process, t.name AS target, w.watchers, w.behind AS furthest_behind, w.resets
FROM reconciler.stream_watches w JOIN reconciler.instances i ON i.id = w.instance_id JOIN reconciler.targets t ON t.id = w.target_id;
COMMENT ON VIEW reconciler.stream_watchers IS 'Who follows which stream, one row for each process that serves it. Processes write it when a first watcher comes, and every 15 s.';
COMMENT ON COLUMN reconciler.stream_watchers.process IS 'Host and process id.';
COMMENT ON COLUMN reconciler.stream_watchers.furthest_behind IS 'How many versions the slowest of them has still to read.';
COMMENT ON COLUMN reconciler.stream_watchers.resets IS 'How often one had to begin again, since the process has watchers of the stream.';

CREATE VIEW reconciler.stream_reports WITH (security_barrier) AS
SELECT t.name AS target, p.session, p.seq, p.reported_at, p.inventory_at, o.observations, o.failed, o.unhealthy
FROM reconciler.reports p JOIN reconciler.targets t ON t.id = p.target_id
CROSS JOIN LATERAL (SELECT count(*) AS observations, count(*) FILTER (WHERE x.state = 'failed') AS failed, count(*) FILTER (WHERE NOT x.healthy) AS unhealthy
    FROM reconciler.observations x WHERE x.target_id = p.target_id) AS o;
COMMENT ON VIEW reconciler.stream_reports IS 'What the clients of each stream report, and when they did so last.';
COMMENT ON COLUMN reconciler.stream_reports.session IS 'The newest session, as the client named it; NULL: none has reported anything.';
COMMENT ON COLUMN reconciler.stream_reports.seq IS 'Highest number of its reports.';
COMMENT ON COLUMN reconciler.stream_reports.reported_at IS 'When its last report came, by the clock of this server.';
COMMENT ON COLUMN reconciler.stream_reports.inventory_at IS 'When its last complete report came.';
COMMENT ON COLUMN reconciler.stream_reports.observations IS 'Objects that were reported.';

-- +goose StatementBegin
-- own_stream creates or updates the stream of a target for its owner, and returns whether it is complete.
CREATE FUNCTION reconciler.own_stream(target_id integer, owner uuid, term bigint, history interval, ack boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM reconciler.fence(own_stream.target_id, own_stream.owner, own_stream.term);
    INSERT INTO reconciler.streams AS s (target_id, history, ack) VALUES (own_stream.target_id, own_stream.history, own_stream.ack)
    ON CONFLICT ON CONSTRAINT streams_pkey DO UPDATE SET history = excluded.history, ack = excluded.ack
    WHERE (s.history, s.ack) <> (excluded.history, excluded.ack);
    INSERT INTO reconciler.reports (target_id) VALUES (own_stream.target_id) ON CONFLICT DO NOTHING;
    RETURN (SELECT s.complete FROM reconciler.streams AS s WHERE s.target_id = own_stream.target_id);
END
$$;

-- order_stream counts a command for the clients of a stream, and returns the name of its agent, NULL for none. pause stands for resume, too.
CREATE FUNCTION reconciler.order_stream(target_id integer, command text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO reconciler.stream_controls AS c (target_id, pauses, resyncs, retries, approvals)
    SELECT s.target_id, (command = 'pause')::integer, (command = 'resync')::integer, (command = 'retry')::integer, (command = 'approve')::integer
    FROM reconciler.streams AS s WHERE s.target_id = order_stream.target_id
    ON CONFLICT ON CONSTRAINT stream_controls_pkey DO UPDATE SET pauses = c.pauses + excluded.pauses, resyncs = c.resyncs + excluded.resyncs,
        retries = c.retries + excluded.retries, approvals = c.approvals + excluded.approvals;
    RETURN (SELECT a.name FROM reconciler.agents AS a JOIN reconciler.targets AS t ON t.name = a.target WHERE t.id = order_stream.target_id);
END
$$;

-- publish writes new versions of objects and tombstones (specs '') in one flushed transaction. It returns how many changed, and
-- whether other processes serve watchers of the stream.
-- The fence comes first: PostgreSQL makes a transaction visible before it frees its locks, so the versions of one target
-- become visible in their order, and no other transaction publishes for the target in the meantime. A crash must not give out a
-- version twice, and the owner's session does not flush. Every row is found by its key: no plan on a young table may turn into a scan. To plan it
-- for each call would double the time of a small one.
CREATE FUNCTION reconciler.publish(target_id integer, owner uuid, term bigint, resources text[], keys text[], revisions bigint[],
    specs text[], hashes bytea[], OUT changed bigint, OUT watched boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    PERFORM reconciler.fence(publish.target_id, publish.owner, publish.term);
    IF NOT EXISTS (SELECT FROM reconciler.streams AS s WHERE s.target_id = publish.target_id) THEN
        RAISE EXCEPTION 'the stream is gone: a running process has another driver for its target' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM set_config('synchronous_commit', 'on', true);
    -- A row that exists is inserted with its version, and so in conflict with itself: no join can read more than these rows.
    INSERT INTO reconciler.published (target_id, resource, key, version, revision, spec, hash, bytes)
    SELECT publish.target_id, n.resource, n.key, coalesce(p.version, nextval('reconciler.published_seq')), n.revision, n.spec::jsonb, n.hash,
        coalesce(octet_length(n.spec), 0)
    FROM (SELECT DISTINCT ON (u.resource COLLATE "C", u.key COLLATE "C") u.resource, u.key, u.revision,
                 nullif(u.spec, '') AS spec, CASE WHEN u.spec <> '' THEN u.hash END AS hash
          FROM unnest(publish.resources, publish.keys, publish.revisions, publish.specs, publish.hashes) WITH ORDINALITY
               AS u (resource, key, revision, spec, hash, place)
          ORDER BY u.resource COLLATE "C", u.key COLLATE "C", u.place DESC) AS n
    LEFT JOIN LATERAL (
        SELECT o.version, o.hash FROM reconciler.published AS o
        WHERE o.target_id = publish.target_id AND o.resource = n.resource AND o.key = n.key
        ORDER BY o.version DESC LIMIT 1
    ) AS p ON true
    WHERE p.hash IS DISTINCT FROM n.hash
    ON CONFLICT ON CONSTRAINT published_pkey DO UPDATE
    SET version = nextval('reconciler.published_seq'), revision = excluded.revision, spec = excluded.spec, hash = excluded.hash,
        bytes = excluded.bytes, at = excluded.at;
    GET DIAGNOSTICS changed = ROW_COUNT;
    watched := EXISTS (SELECT FROM reconciler.stream_watches w WHERE w.target_id = publish.target_id AND w.instance_id <> publish.owner);
END
$$;

-- complete_stream records that every object of the target is published. A restore in between has deposed the owner.
CREATE FUNCTION reconciler.complete_stream(target_id integer, owner uuid, term bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM reconciler.fence(complete_stream.target_id, complete_stream.owner, complete_stream.term);
    UPDATE reconciler.streams AS s SET complete = true WHERE s.target_id = complete_stream.target_id AND NOT s.complete;
END
$$;

-- report takes what a client has observed: all of it, or nothing. The order is that of the arrays; of an object that is named twice
-- the last one counts. healthy, messages and statuses have '' for none.
-- Of two observations of an object the one with the higher version is newer, then that of the newer session, then that with the higher seq. A
-- complete report takes the place of all that is older by session and seq. So the order in which reports of a session arrive makes no difference.
-- as_of is up to which version the client of a complete report had read the stream; 0: it does not say. An absent object may be reported with a
-- later version than its own, that of the end of a snapshot without it.
-- client is what the client tells of itself, NULL for nothing: then what an earlier report of the session had stays.
-- accepted counts the objects that are now as the report says. awaited: objects may wait for it, see look_again. wrong is the place
-- of the first one that cannot have been observed, and problem is why: then nothing has changed.
-- Reports on one stream wait for each other on its row of reports. With its lock no row of observations can be there that the second
-- statement does not see, and no two reports lock rows in different orders. An answer that was given is not lost: the
-- transaction is flushed.
-- A complete report writes no row that is as it was: inventory_at stands for all of them. (100,000 objects each minute, unchanged,
-- would else be 100,000 dead rows a minute.)
CREATE FUNCTION reconciler.report(target_id integer, session text, seq bigint, complete boolean, as_of bigint, resources text[], keys text[], versions bigint[],
    states text[], messages text[], healthy text[], statuses text[], client jsonb DEFAULT NULL, OUT accepted bigint, OUT ignored bigint, OUT awaited boolean, OUT wrong bigint, OUT problem text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_memoize = off SET jit = off SET work_mem = '64MB' AS $$
DECLARE
    r       reconciler.reports;
    newest  bigint;
    ack     boolean;
    at_     timestamptz;
    unknown text;
    changed bigint;
BEGIN
    SELECT * INTO r FROM reconciler.reports AS x WHERE x.target_id = report.target_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the stream is gone' USING ERRCODE = 'no_data_found';
    END IF;
    PERFORM set_config('synchronous_commit', 'on', true);
    at_ := clock_timestamp();
    accepted := 0;
    ignored := cardinality(report.keys);
    SELECT greatest(s.floor, (SELECT x.version FROM reconciler.published AS x WHERE x.target_id = report.target_id AND x.version > 0 ORDER BY x.version DESC LIMIT 1)), s.ack
    INTO newest, ack FROM reconciler.streams AS s WHERE s.target_id = report.target_id;
    SELECT min(u.n) INTO wrong FROM unnest(array_prepend(report.as_of, report.versions)) WITH ORDINALITY AS u (version, n) WHERE u.version > newest;
    IF wrong IS NOT NULL THEN
        wrong := wrong - 1; -- 0: as_of
        problem := format('version %s was never published: the newest of this target is %s', coalesce(report.versions[wrong], as_of), newest);
        RETURN;
    END IF;
    SELECT u.resource, u.n INTO unknown, wrong
    FROM (SELECT x.resource, min(x.n) AS n FROM unnest(report.resources) WITH ORDINALITY AS x (resource, n) GROUP BY x.resource) AS u
    WHERE NOT EXISTS (SELECT FROM reconciler.resources AS c WHERE c.name = u.resource)
      AND NOT EXISTS (SELECT FROM reconciler.published AS p WHERE p.target_id = report.target_id AND p.resource = u.resource)
    ORDER BY u.n LIMIT 1;
    IF wrong IS NOT NULL THEN
        problem := format('there is no resource %s', to_json(unknown));
        RETURN;
    END IF;
    IF r.session = report.session AND report.seq < r.inventory_seq THEN
        RETURN; -- a newer inventory has everything
    END IF;
    IF r.session <> report.session AND report.session = ANY (r.replaced) THEN
        UPDATE reconciler.reports AS x SET ignored_at = at_, ignored_client = coalesce(client ->> 'name', report.session)
        WHERE x.target_id = report.target_id AND (x.ignored_at > at_ - interval '1 minute') IS NOT TRUE;
        RETURN;
    END IF;
    IF r.session IS DISTINCT FROM report.session THEN
        r.replaced := CASE WHEN r.session IS NULL THEN '{}' ELSE (r.replaced || r.session::text)[greatest(cardinality(r.replaced) - 998, 1):] END;
        r.session := report.session;
        r.session_id := r.session_id + 1;
        r.session_since := at_;
        r.seq := 0;
        r.inventory_seq := 0;
        r.held := NULL;
        r.ignored_at := NULL;
    END IF;
    IF client IS NOT NULL AND report.seq >= r.seq OR r.held IS NULL THEN
        r.client_name := client ->> 'name';
        r.client_version := client ->> 'version';
        r.client_driver := client ->> 'driver';
        r.held := CASE WHEN client IS NOT NULL THEN coalesce((client ->> 'held')::bigint, 0) END;
        r.trouble := client ->> 'trouble';
        r.healthy := (client ->> 'healthy')::boolean;
    END IF;
    -- Only what is published, or has a tombstone, can be observed: the table is bounded, and goes with it. A version above the
    -- published one is of a time that a restore has undone.
    WITH named AS MATERIALIZED (
        SELECT DISTINCT ON (c.id, u.key COLLATE "C") c.id AS resource_id, u.resource, u.key, u.version, u.state, nullif(u.message, '') AS message,
            nullif(u.healthy, '')::boolean AS healthy, nullif(u.status, '')::jsonb AS status
        FROM unnest(report.resources, report.keys, report.versions, report.states, report.messages, report.healthy, report.statuses) WITH ORDINALITY
            AS u (resource, key, version, state, message, healthy, status, n)
        JOIN reconciler.resources AS c ON c.name = u.resource
        ORDER BY c.id, u.key COLLATE "C", u.n DESC
    ), known AS MATERIALIZED (
        SELECT n.*, o.version IS NULL OR (o.version, o.session, o.seq) < (n.version, r.session_id, report.seq)
                OR report.complete AND (o.session, o.seq) < (r.session_id, report.seq) AS newer,
            (o.version, o.session, o.seq) = (n.version, r.session_id, report.seq) AS same,
            NOT report.complete OR o.session < r.counts_from OR (o.version, o.state, o.message, o.healthy, o.status) IS DISTINCT FROM (n.version, n.state, n.message, n.healthy, n.status) AS other
        FROM named AS n
        LEFT JOIN reconciler.observations AS o ON o.target_id = report.target_id AND o.resource_id = n.resource_id AND o.key = n.key
        -- A version that was observed was published.
        WHERE CASE WHEN n.state = 'absent' THEN 1 ELSE n.version END <= CASE WHEN o.version >= n.version THEN o.version ELSE (
            SELECT x.version FROM reconciler.published AS x WHERE x.target_id = report.target_id AND x.resource = n.resource AND x.key = n.key
            ORDER BY x.version DESC LIMIT 1) END
    ), written AS (
        INSERT INTO reconciler.observations (target_id, resource_id, key, version, state, message, healthy, status, session, seq, observed_at)
        SELECT report.target_id, k.resource_id, k.key, k.version, k.state, k.message, k.healthy, k.status, r.session_id, report.seq, at_
        FROM known AS k WHERE k.newer AND k.other
        ON CONFLICT ON CONSTRAINT observations_pkey DO UPDATE SET version = excluded.version, state = excluded.state, message = excluded.message,
            healthy = excluded.healthy, status = excluded.status, session = excluded.session, seq = excluded.seq, observed_at = excluded.observed_at
    ), gone AS (
        -- NOT IN is looked up in a hash table, whatever the planner expects; NOT EXISTS may compare each with each.
        DELETE FROM reconciler.observations AS o
        WHERE report.complete AND o.target_id = report.target_id AND (o.session, o.seq) < (r.session_id, report.seq)
          AND (o.resource_id, o.key) NOT IN (SELECT n.resource_id, n.key FROM named AS n)
    )
    SELECT count(*) FILTER (WHERE k.newer OR k.same), count(*) FILTER (WHERE k.newer AND k.other OR k.same) INTO accepted, changed FROM known AS k;
    ignored := ignored - accepted;
    awaited := ack AND (changed > 0 OR report.as_of > r.inventory_version);
    UPDATE reconciler.reports AS x
    SET session = r.session, session_id = r.session_id, replaced = r.replaced, seq = greatest(r.seq, report.seq), reported_at = at_,
        inventory_seq = CASE WHEN report.complete THEN report.seq ELSE r.inventory_seq END,
        inventory_at = CASE WHEN report.complete THEN at_ ELSE x.inventory_at END,
        inventory_version = CASE WHEN report.complete THEN report.as_of ELSE x.inventory_version END,
        session_since = r.session_since, client_name = r.client_name, client_version = r.client_version, client_driver = r.client_driver,
        held = r.held, trouble = r.trouble, healthy = r.healthy, ignored_at = r.ignored_at
    WHERE x.target_id = report.target_id;
END
$$;

-- acknowledged returns, by their places, which of these objects of a stream are published with their hash, or not at all for an empty hash.
-- confirmed: a client has reported it. Otherwise failed and reason are what is known, and seconds is for how long it is published. An
-- object without a row has nothing to confirm: it was never published, or its tombstone is older than the stream's history.
CREATE FUNCTION reconciler.acknowledged(target_id integer, resources text[], keys text[], hashes bytea[])
RETURNS TABLE (place integer, confirmed boolean, failed boolean, reason text, seconds double precision)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    -- To plan it for each call would double the time of a small one.
    RETURN QUERY SELECT u.place::integer, p.version IS NULL OR coalesce(o.version >= p.version AND o.state = CASE WHEN p.hash IS NULL THEN 'absent' ELSE 'applied' END
            OR p.hash IS NULL AND o.version IS NULL AND i.inventory_version >= p.version, false),
        coalesce(o.version >= p.version AND o.state = 'failed', false),
        CASE WHEN o.version >= p.version THEN coalesce(o.message, format('the client reports it %s', o.state))
            ELSE format('the client has not reported version %s', p.version) END,
        extract(epoch FROM clock_timestamp() - p.at)::double precision
    FROM unnest(acknowledged.resources, acknowledged.keys, acknowledged.hashes) WITH ORDINALITY AS u (resource, key, hash, place)
    LEFT JOIN LATERAL (SELECT x.version, x.at, x.hash FROM reconciler.published AS x
        WHERE x.target_id = acknowledged.target_id AND x.resource = u.resource AND x.key = u.key ORDER BY x.version DESC LIMIT 1) AS p ON true
    -- One after the other: a join may be planned on a part of the key, and read all of the target for each object.
    LEFT JOIN LATERAL (SELECT x.id FROM reconciler.resources AS x WHERE x.name = u.resource LIMIT 1) AS r ON true
    LEFT JOIN reconciler.reports AS i ON i.target_id = acknowledged.target_id
    LEFT JOIN LATERAL (SELECT x.version, x.state, x.message FROM reconciler.observations AS x
        WHERE x.target_id = acknowledged.target_id AND x.resource_id = r.id AND x.key = u.key
          AND x.session >= i.counts_from LIMIT 1) AS o ON true
    WHERE p.hash IS NOT DISTINCT FROM nullif(u.hash, '');
END
$$;

-- look_again has objects looked at again that wait for what a report has brought, and returns how many. It locks the target first, as
-- retry() does. The generation grows, so that a look from before the report that is still under way is repeated. Complete reports
-- also confirm deletes of what they do not name.
CREATE FUNCTION reconciler.look_again(target_id integer, complete boolean, resources text[], keys text[]) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    n bigint;
BEGIN
    PERFORM FROM reconciler.targets AS t WHERE t.id = look_again.target_id FOR NO KEY UPDATE;
    IF complete THEN
        -- The few that wait are looked up among the many that are named, and not the other way round.
        UPDATE reconciler.ledger AS l SET next_attempt_at = clock_timestamp(), generation = l.generation + 1
        WHERE l.target_id = look_again.target_id AND l.state IN ('pending', 'failing')
          AND (NOT l.wanted OR (l.resource_id, l.key) IN (SELECT c.id, u.key COLLATE "C" FROM unnest(look_again.resources, look_again.keys) AS u (resource, key)
            JOIN reconciler.resources AS c ON c.name = u.resource));
    ELSE
        -- Each is looked up by its key, and not by its state, for which there are other indexes. The target is locked, so no row moves.
        UPDATE reconciler.ledger AS l SET next_attempt_at = clock_timestamp(), generation = l.generation + 1
        WHERE l.ctid = ANY (ARRAY(
            SELECT l.at FROM unnest(look_again.resources, look_again.keys) AS u (resource, key)
            CROSS JOIN LATERAL (SELECT x.id FROM reconciler.resources AS x WHERE x.name = u.resource LIMIT 1) AS r
            CROSS JOIN LATERAL (SELECT x.ctid AS at FROM reconciler.ledger AS x
                WHERE x.target_id = look_again.target_id AND x.resource_id = r.id AND x.key = u.key LIMIT 1) AS l))
          AND l.state IN ('pending', 'failing');
    END IF;
    GET DIAGNOSTICS n = ROW_COUNT;
    PERFORM pg_notify('reconciler_control', '') WHERE n > 0;
    RETURN n;
END
$$;

-- explain_observed tells what a client of a stream reported of an object; NULL where none has reported anything.
CREATE FUNCTION reconciler.explain_observed(target_id integer, r reconciler.resources, key text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN o.version IS NULL THEN format('the client has not reported it; its last report came at %s.', date_trunc('second', p.reported_at))
        ELSE format('the client reported version %s %s at %s', o.version, o.state, date_trunc('second', greatest(o.observed_at, p.inventory_at)))
            || CASE WHEN o.healthy THEN ', healthy' WHEN NOT o.healthy THEN ', not healthy' ELSE '' END || coalesce(': ' || o.message, '') || '.'
            || CASE WHEN v.version > o.version THEN format(' The newest is version %s%s.', v.version, CASE WHEN v.deleted THEN ', which deletes it' ELSE '' END) ELSE '' END
    END
    FROM reconciler.reports p
    LEFT JOIN reconciler.observations o ON o.target_id = p.target_id AND o.resource_id = r.id AND o.key = explain_observed.key
    LEFT JOIN LATERAL (SELECT x.version, x.hash IS NULL AS deleted FROM reconciler.published x
        WHERE x.target_id = p.target_id AND x.resource = r.name AND x.key = explain_observed.key ORDER BY x.version DESC LIMIT 1) AS v ON true
    WHERE p.target_id = explain_observed.target_id AND p.reported_at IS NOT NULL
$$;

-- forget_observations removes what was observed of the objects named, whose tombstones are gone, and of resources that are
-- gone, at most this many. It returns whether there may be more.
CREATE FUNCTION reconciler.forget_observations(target_id integer, resources text[], keys text[], most integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    left_behind tid[];
BEGIN
    left_behind := ARRAY(
        SELECT x.ctid FROM reconciler.resource_gaps() AS g CROSS JOIN LATERAL (
            SELECT o.ctid FROM reconciler.observations AS o
            WHERE o.target_id = forget_observations.target_id AND o.resource_id > g.above AND o.resource_id < g.below LIMIT forget_observations.most) AS x
        LIMIT forget_observations.most);
    IF forget_observations.keys IS NULL AND left_behind = '{}' THEN
        RETURN false;
    END IF;
    -- A report that still sees the tombstones ends first, and the statements after this see what it has written.
    PERFORM FROM reconciler.reports AS x WHERE x.target_id = forget_observations.target_id FOR NO KEY UPDATE;
    DELETE FROM reconciler.observations AS o WHERE o.ctid = ANY (left_behind);
    -- One lookup after the other, as in acknowledged().
    DELETE FROM reconciler.observations AS o WHERE o.ctid = ANY (ARRAY(
        SELECT x.at FROM unnest(forget_observations.resources, forget_observations.keys) AS u (resource, key)
        CROSS JOIN LATERAL (SELECT c.id FROM reconciler.resources AS c WHERE c.name = u.resource LIMIT 1) AS r
        CROSS JOIN LATERAL (SELECT y.ctid AS at FROM reconciler.observations AS y
            WHERE y.target_id = forget_observations.target_id AND y.resource_id = r.id AND y.key = u.key LIMIT 1) AS x
        WHERE NOT EXISTS (SELECT FROM reconciler.published AS p
            WHERE p.target_id = forget_observations.target_id AND p.resource = u.resource AND p.key = u.key)));
    RETURN cardinality(left_behind) = forget_observations.most;
END
$$;

-- forget_tombstones deletes at most this many tombstones of each stream that are older than its history, and raises the
-- floor in the same transaction. What was observed of them goes with them. It returns whether any stream may have more.
CREATE FUNCTION reconciler.forget_tombstones(most integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s      record;
    gone   bigint;
    newest bigint;
    names  text[];
    keys   text[];
    more   boolean := false;
BEGIN
    FOR s IN SELECT x.target_id, x.history FROM reconciler.streams AS x ORDER BY x.target_id LOOP
        WITH old AS MATERIALIZED (
            SELECT p.resource, p.key FROM reconciler.published AS p
            WHERE p.target_id = s.target_id AND p.spec IS NULL AND p.at < clock_timestamp() - s.history
            ORDER BY p.version LIMIT forget_tombstones.most
        ), deleted AS (
            DELETE FROM reconciler.published AS p USING old
            WHERE p.target_id = s.target_id AND p.resource = old.resource AND p.key = old.key AND p.spec IS NULL
            RETURNING p.resource, p.key, p.version
        )
        SELECT count(*), max(d.version), array_agg(d.resource), array_agg(d.key) INTO gone, newest, names, keys FROM deleted AS d;
        UPDATE reconciler.streams AS x SET floor = greatest(x.floor, newest) WHERE x.target_id = s.target_id AND gone > 0;
        more := more OR gone = forget_tombstones.most;
        more := reconciler.forget_observations(s.target_id, names, keys, forget_tombstones.most) OR more;
    END LOOP;
    RETURN more;
END
$$;

-- leave_stream removes what a stream has published, and what was reported on it, together with the stream. It waits for a report first.
CREATE FUNCTION reconciler.leave_stream() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM reconciler.reports AS r WHERE r.target_id = OLD.target_id;
    DELETE FROM reconciler.observations AS o WHERE o.target_id = OLD.target_id;
    DELETE FROM reconciler.published AS p WHERE p.target_id = OLD.target_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER leave_stream AFTER DELETE ON reconciler.streams FOR EACH ROW EXECUTE FUNCTION reconciler.leave_stream();
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.own_stream IS 'Internal: creates the stream of a target, or changes its options.';
COMMENT ON FUNCTION reconciler.order_stream IS 'Internal: counts a command for the clients of a stream.';
COMMENT ON FUNCTION reconciler.acknowledged IS 'Internal: which objects are published as is asked, and what clients have reported of them.';
COMMENT ON FUNCTION reconciler.look_again IS 'Internal: has objects looked at that wait for a report.';
COMMENT ON FUNCTION reconciler.publish IS 'Internal: publishes new versions of objects and tombstones.';
COMMENT ON FUNCTION reconciler.complete_stream IS 'Internal: records that every object of a stream is published.';
COMMENT ON FUNCTION reconciler.report IS 'Internal: takes what a client of a stream has observed.';
COMMENT ON FUNCTION reconciler.explain_observed IS 'Internal: what a client of a stream reported of an object.';
COMMENT ON FUNCTION reconciler.forget_observations IS 'Internal: deletes observations of objects and resources that are gone.';
COMMENT ON FUNCTION reconciler.forget_tombstones IS 'Internal: deletes old tombstones of streams and raises their floors.';
COMMENT ON FUNCTION reconciler.leave_stream IS 'Internal: deletes what a stream has published when the stream goes.';

SELECT reconciler.regrant();

-- +goose Down
DROP VIEW reconciler.stream_reports, reconciler.stream_watchers;
DROP TABLE reconciler.stream_controls, reconciler.stream_watches, reconciler.streams, reconciler.published;
DROP SEQUENCE reconciler.published_seq;
DROP FUNCTION reconciler.leave_stream, reconciler.forget_tombstones, reconciler.forget_observations, reconciler.explain_observed, reconciler.report, reconciler.acknowledged, reconciler.look_again, reconciler.complete_stream, reconciler.publish, reconciler.order_stream, reconciler.own_stream;
