-- +goose Up

-- Streams: targets with the driver `stream`. Their owner publishes objects to a table, which remote clients follow.

CREATE TABLE reconciler.streams (
    target_id integer PRIMARY KEY REFERENCES reconciler.targets ON DELETE CASCADE,
    id        uuid NOT NULL DEFAULT gen_random_uuid(),
    epoch     uuid NOT NULL DEFAULT gen_random_uuid(),
    complete  boolean NOT NULL DEFAULT false,
    floor     bigint NOT NULL DEFAULT 0,
    history   interval NOT NULL
);
COMMENT ON TABLE reconciler.streams IS 'One row for each target with driver stream.';
COMMENT ON COLUMN reconciler.streams.id IS 'Identifies the stream: a target that is released and comes back begins another one.';
COMMENT ON COLUMN reconciler.streams.epoch IS 'Changes after a restore, dump and reload, or a failover that lost commits: versions of another epoch mean nothing.';
COMMENT ON COLUMN reconciler.streams.complete IS 'A full sync of this epoch has published every object. Until then an object that is not published may still exist.';
COMMENT ON COLUMN reconciler.streams.floor IS 'Tombstones up to this version may be gone: a client that has read less far must read everything again.';
COMMENT ON COLUMN reconciler.streams.history IS 'How long tombstones are kept.';

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
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- An object has one row. With the version, a lookup that begins at the newest one is not slowed down by dead rows that an
    -- open transaction keeps.
    PRIMARY KEY (target_id, resource, key, version),
    CHECK (version > 0),
    CHECK ((spec IS NULL) = (hash IS NULL))
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05);
-- Partial, so that only reads by version can use it (they ask for version > 0), and none by key, whatever the planner expects.
CREATE INDEX published_version ON reconciler.published (target_id, version) WHERE version > 0;
CREATE INDEX published_tombstones ON reconciler.published (target_id, version) WHERE spec IS NULL;
COMMENT ON TABLE reconciler.published IS 'The newest version of each object of each stream. Within one target, versions become visible in their order; across targets they do not.';
COMMENT ON COLUMN reconciler.published.version IS 'Grows with each change within a target.';
COMMENT ON COLUMN reconciler.published.revision IS 'The newest revision that was known when the row was read.';
COMMENT ON COLUMN reconciler.published.spec IS 'NULL: the object was deleted (a tombstone).';
COMMENT ON COLUMN reconciler.published.hash IS 'First 16 bytes of the SHA-256 of spec::text.';

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

CREATE VIEW reconciler.stream_watchers WITH (security_barrier) AS
SELECT i.name AS process, t.name AS target, w.watchers, w.behind AS furthest_behind, w.resets
FROM reconciler.stream_watches w JOIN reconciler.instances i ON i.id = w.instance_id JOIN reconciler.targets t ON t.id = w.target_id;
COMMENT ON VIEW reconciler.stream_watchers IS 'Who follows which stream, one row for each process that serves it. Processes write it when a first watcher comes, and every 15 s.';
COMMENT ON COLUMN reconciler.stream_watchers.process IS 'Host and process id.';
COMMENT ON COLUMN reconciler.stream_watchers.furthest_behind IS 'How many versions the slowest of them has still to read.';
COMMENT ON COLUMN reconciler.stream_watchers.resets IS 'How often one had to begin again, since the process has watchers of the stream.';

-- +goose StatementBegin
-- own_stream creates or updates the stream of a target for its owner.
CREATE FUNCTION reconciler.own_stream(target_id integer, owner uuid, term bigint, history interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM reconciler.fence(own_stream.target_id, own_stream.owner, own_stream.term);
    INSERT INTO reconciler.streams AS s (target_id, history) VALUES (own_stream.target_id, own_stream.history)
    ON CONFLICT ON CONSTRAINT streams_pkey DO UPDATE SET history = excluded.history WHERE s.history <> excluded.history;
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
    INSERT INTO reconciler.published (target_id, resource, key, version, revision, spec, hash)
    SELECT publish.target_id, n.resource, n.key, coalesce(p.version, nextval('reconciler.published_seq')), n.revision, n.spec::jsonb, n.hash
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
    SET version = nextval('reconciler.published_seq'), revision = excluded.revision, spec = excluded.spec, hash = excluded.hash, at = excluded.at;
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

-- forget_tombstones deletes at most this many tombstones of each stream that are older than its history, and raises the
-- floor in the same transaction. It returns whether any stream may have more.
CREATE FUNCTION reconciler.forget_tombstones(most integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s      record;
    gone   bigint;
    newest bigint;
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
            RETURNING p.version
        )
        SELECT count(*), max(d.version) INTO gone, newest FROM deleted AS d;
        UPDATE reconciler.streams AS x SET floor = greatest(x.floor, newest) WHERE x.target_id = s.target_id AND gone > 0;
        more := more OR gone = forget_tombstones.most;
    END LOOP;
    RETURN more;
END
$$;

-- leave_stream removes what a stream has published, together with the stream.
CREATE FUNCTION reconciler.leave_stream() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM reconciler.published AS p WHERE p.target_id = OLD.target_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER leave_stream AFTER DELETE ON reconciler.streams FOR EACH ROW EXECUTE FUNCTION reconciler.leave_stream();
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.own_stream IS 'Internal: creates the stream of a target, or changes its history.';
COMMENT ON FUNCTION reconciler.publish IS 'Internal: publishes new versions of objects and tombstones.';
COMMENT ON FUNCTION reconciler.complete_stream IS 'Internal: records that every object of a stream is published.';
COMMENT ON FUNCTION reconciler.forget_tombstones IS 'Internal: deletes old tombstones of streams and raises their floors.';
COMMENT ON FUNCTION reconciler.leave_stream IS 'Internal: deletes what a stream has published when the stream goes.';

SELECT reconciler.regrant();

-- +goose Down
DROP VIEW reconciler.stream_watchers;
DROP TABLE reconciler.stream_watches, reconciler.streams, reconciler.published;
DROP SEQUENCE reconciler.published_seq;
DROP FUNCTION reconciler.leave_stream, reconciler.forget_tombstones, reconciler.complete_stream, reconciler.publish, reconciler.own_stream;
