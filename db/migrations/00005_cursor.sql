-- +goose Up

-- Cursor, fencing, retention and the identity of the database.

-- +goose StatementBegin
-- fence locks a target for the rest of the transaction and refuses a deposed owner (SQLSTATE RC001). Every write of
-- an owner starts with it. The lock is what makes it exact: a takeover in another transaction waits, or is seen. It returns
-- whether the target is paused, as it is until the transaction ends.
CREATE FUNCTION reconciler.fence(target_id integer, owner uuid, term bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    paused boolean;
BEGIN
    SELECT t.paused_at IS NOT NULL INTO paused FROM reconciler.targets t WHERE t.id = fence.target_id AND t.owner = fence.owner AND t.term = fence.term FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'target % was taken over by another process: term % is over', fence.target_id, fence.term USING ERRCODE = 'RC001';
    END IF;
    RETURN paused;
END
$$;

-- fresh_term is the term of a target that begins anew: the time of day in microseconds, or one more than the term of before. Receivers
-- that fence remember the highest that they have seen, and this database may not: it was restored, its dump was made before the
-- first start, or somebody has forgotten the target. Terms that follow count up by one: those that an old primary gives out after a
-- failover stay below the new one's.
CREATE FUNCTION reconciler.fresh_term(term bigint) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT greatest(fresh_term.term + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
$$;

-- fence_leader is fence for the leadership of the tick.
CREATE FUNCTION reconciler.fence_leader(owner uuid, term bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM reconciler.leases l WHERE l.name = 'tick' AND l.owner = fence_leader.owner AND l.term = fence_leader.term FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'leadership was taken over by another process: term % is over', fence_leader.term USING ERRCODE = 'RC001';
    END IF;
END
$$;

-- cursor_of returns the cursor of a target (0: of the leader); all its columns are NULL when there is none. Its plan must not
-- change while the table holds dead rows: the newest row is the first that it reads.
CREATE FUNCTION reconciler.cursor_of(consumer integer) RETURNS reconciler.cursors
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    c reconciler.cursors;
BEGIN
    SELECT * INTO c FROM reconciler.cursors x WHERE x.consumer = cursor_of.consumer ORDER BY x.id DESC LIMIT 1;
    RETURN c;
END
$$;

-- write_cursor moves a cursor. Who calls it holds the lock of the consumer's fence.
CREATE FUNCTION reconciler.write_cursor(consumer integer, revision bigint, snapshot pg_snapshot,
    batch_revision bigint DEFAULT NULL, batch_snapshot pg_snapshot DEFAULT NULL, batch_xid xid8 DEFAULT NULL, batch_seq bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    former bigint := (SELECT x.id FROM reconciler.cursors x WHERE x.consumer = write_cursor.consumer ORDER BY x.id DESC LIMIT 1);
BEGIN
    INSERT INTO reconciler.cursors (consumer, revision, snapshot, batch_revision, batch_snapshot, batch_xid, batch_seq)
    VALUES (write_cursor.consumer, write_cursor.revision, write_cursor.snapshot, write_cursor.batch_revision, write_cursor.batch_snapshot, write_cursor.batch_xid, write_cursor.batch_seq);
    DELETE FROM reconciler.cursors x WHERE x.consumer = write_cursor.consumer AND x.id = former;
END
$$;

-- beat is what a heartbeat writes: that this process runs, which targets its config lists, and that everything it owns is
-- renewed. It waits for nobody's lock. answered is the last heartbeat that the process got an answer to: what it deletes
-- is named by its key, as a look for older rows would walk all the dead ones.
CREATE FUNCTION reconciler.beat(id uuid, name text, version text, targets text[], options text[], beat bigint, answered bigint, failing jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    INSERT INTO reconciler.heartbeats (instance, beat, failing) VALUES (beat.id, beat.beat, beat.failing);
    DELETE FROM reconciler.heartbeats h WHERE h.ctid = ANY (ARRAY(
        SELECT x.ctid FROM reconciler.heartbeats x WHERE x.instance = beat.id AND x.beat >= beat.answered AND x.beat < beat.beat FOR UPDATE SKIP LOCKED));
    INSERT INTO reconciler.instances (id, name, version, targets, options) SELECT beat.id, beat.name, beat.version, beat.targets, beat.options
    WHERE NOT EXISTS (SELECT FROM reconciler.instances i WHERE i.id = beat.id) ON CONFLICT DO NOTHING;
    IF FOUND THEN -- the database may be one that was restored from before this process started
        INSERT INTO reconciler.configs (instance, source, targets) SELECT beat.id, beat.name, beat.targets WHERE beat.targets <> '{}' ON CONFLICT DO NOTHING;
    END IF;
    UPDATE reconciler.instances i SET targets = beat.targets, options = beat.options WHERE i.id IN (
        SELECT x.id FROM reconciler.instances x WHERE x.id = beat.id AND x.targets <> beat.targets FOR NO KEY UPDATE SKIP LOCKED);
END
$$;

-- last_beat returns the last heartbeat of a process; beat is NULL when there is none. Its plan must not change while the
-- table holds dead rows: the newest row is the first that it reads.
CREATE FUNCTION reconciler.last_beat(instance uuid, OUT beat bigint, OUT at timestamptz, OUT failing jsonb) RETURNS record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT h.beat, h.at, h.failing FROM reconciler.heartbeats h WHERE h.instance = last_beat.instance ORDER BY h.beat DESC LIMIT 1
$$;

-- lease_lives says for people whether an owner is there, as the clock of this server has it. A heartbeat of the future is
-- one of before the clock was set back. Processes judge each other by their own clocks, and more strictly.
CREATE FUNCTION reconciler.lease_lives(owner uuid, ttl interval) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(b.at BETWEEN clock_timestamp() - lease_lives.ttl AND clock_timestamp() + lease_lives.ttl, false) FROM reconciler.last_beat(lease_lives.owner) AS b
$$;

-- unrenewed says whether a lease is still as somebody saw it: same owner, same term, and no heartbeat since. Heartbeats that
-- are left of a process without a row in instances do not count.
CREATE FUNCTION reconciler.unrenewed(owner uuid, term bigint, seen_owner text, seen_term bigint, seen_beat bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT unrenewed.owner::text = seen_owner AND unrenewed.term = seen_term
        AND (coalesce(b.beat, 0) = seen_beat OR NOT EXISTS (SELECT FROM reconciler.instances i WHERE i.id = unrenewed.owner)) FROM reconciler.last_beat(unrenewed.owner) AS b
$$;

-- interest lists the snapshots that outbox rows are still kept for: the last tick's, and every consumer's.
CREATE FUNCTION reconciler.interest() RETURNS SETOF pg_snapshot
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    (SELECT snapshot FROM reconciler.ticks ORDER BY revision DESC LIMIT 1)
    UNION ALL SELECT c.snapshot FROM reconciler.installation s, reconciler.targets t CROSS JOIN LATERAL reconciler.cursor_of(t.id) AS c WHERE c.revision >= s.floor_revision
    UNION ALL SELECT c.snapshot FROM reconciler.cursor_of(0) AS c WHERE c.snapshot IS NOT NULL
$$;

-- unread says whether a part of the outbox has a row that a consumer standing at this snapshot has not read. Rows that came
-- with a dump may have ids that no transaction of this server has had yet: they are nobody's.
CREATE FUNCTION reconciler.unread(part regclass, snapshot pg_snapshot) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_ boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM %1$s WHERE xid >= $1 AND xid < $3) OR EXISTS (SELECT FROM %1$s WHERE xid = ANY ($2))', part)
    INTO found_ USING pg_snapshot_xmax(snapshot), ARRAY(SELECT pg_snapshot_xip(snapshot)), pg_snapshot_xmax(pg_current_snapshot());
    RETURN found_;
END
$$;

-- unopened_in says whether a part of the outbox has changes of an apply that are not its operations and tasks yet.
CREATE FUNCTION reconciler.unopened_in(part regclass) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    found_ boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM reconciler.applies a CROSS JOIN LATERAL unnest(a.xids) AS x WHERE a.opened_at IS NULL AND EXISTS (SELECT FROM %s o WHERE o.xid = x))', part) INTO found_;
    RETURN found_;
END
$$;

-- exact_from returns the oldest revision whose cursor has read every row of a part of the outbox: what a cursor that stands
-- before it would read is not all any more when the part is empty. NULL: not even the newest has. Snapshots of revisions follow
-- each other, so it is found by binary search, starting at floor_revision: an older answer would not move the floor. Some of the
-- revisions in between are forgotten, so the cursor of a consumer that has read the part is an answer too.
CREATE FUNCTION reconciler.exact_from(part regclass) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    low    bigint := (SELECT s.floor_revision - 1 FROM reconciler.installation s); -- up to here none counts
    exact  bigint := (SELECT max(k.revision) FROM reconciler.ticks k);
    middle record;
BEGIN
    IF exact IS NULL OR reconciler.unread(part, (SELECT k.snapshot FROM reconciler.ticks k WHERE k.revision = exact)) THEN
        RETURN NULL;
    END IF;
    WHILE low + 1 < exact LOOP
        SELECT k.revision, k.snapshot INTO middle FROM reconciler.ticks k
        WHERE k.revision > low AND k.revision <= (low + exact) / 2 ORDER BY k.revision DESC LIMIT 1;
        IF NOT FOUND OR reconciler.unread(part, middle.snapshot) THEN
            low := (low + exact) / 2;
        ELSE
            exact := middle.revision;
        END IF;
    END LOOP;
    RETURN least(exact, (SELECT min(c.revision) FROM reconciler.cursors c, reconciler.installation s
                         WHERE c.revision >= s.floor_revision AND NOT reconciler.unread(part, c.snapshot)));
END
$$;

-- retain empties at most one part of the outbox and says what it did: '' for nothing. A part goes when every consumer
-- has read all of its rows and no unopened apply needs any of them, or when it is older than max_age or the outbox longer than max_rows. Whoever has not read it, in the
-- latter two cases or because nobody knew of him, is told by floor_revision. The part is locked first (never waiting), so no
-- transaction can have an uncommitted row in it. The part in use is never touched.
CREATE FUNCTION reconciler.retain(max_age interval, max_rows bigint, rotate_after interval) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here     bigint;
    part     regclass;
    newest   record;
    old      pg_snapshot;
    first_   bigint;
    used     boolean;
    state    reconciler.installation;
BEGIN
    -- Somebody may hold the row: start_over() in a transaction that is open. Where cursors stand is decided there first.
    SELECT * INTO state FROM reconciler.installation FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN '';
    END IF;
    here := (SELECT last_value >> 20 FROM reconciler.outbox_seq);
    SELECT * INTO newest FROM reconciler.ticks ORDER BY revision DESC LIMIT 1;
    FOR i IN 1..3 LOOP -- the oldest first
        part := format('reconciler.outbox_%s', (here + i) & 3)::regclass;
        CONTINUE WHEN pg_relation_size(part) = 0;
        BEGIN
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', part);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
        IF NOT EXISTS (SELECT FROM reconciler.interest() AS s WHERE reconciler.unread(part, s)) AND NOT reconciler.unopened_in(part) THEN
            UPDATE reconciler.installation SET floor_revision = greatest(floor_revision, reconciler.exact_from(part));
            EXECUTE format('TRUNCATE %s', part);
            RETURN format('emptied %s: everybody has read it', part);
        END IF;
        -- Never drop what no tick has covered yet: nobody could know that it is missing.
        CONTINUE WHEN newest.revision IS NULL OR reconciler.unread(part, newest.snapshot);
        -- Only where somebody stays behind: all that is left of forgotten revisions may have to be walked.
        old := (SELECT k.snapshot FROM reconciler.ticks k WHERE k.at < clock_timestamp() - max_age ORDER BY k.revision DESC LIMIT 1);
        EXECUTE format('SELECT seq FROM %s LIMIT 1', part) INTO first_;
        -- Numbers bound the rows and no more: each turn of the parts skips some. Counting is for when they could be too many.
        IF (SELECT last_value FROM reconciler.outbox_seq) - first_ > max_rows
           AND (SELECT count(*) FROM (SELECT FROM reconciler.outbox LIMIT max_rows + 1) AS counted) > max_rows THEN
            UPDATE reconciler.installation SET floor_revision = greatest(floor_revision, reconciler.exact_from(part));
            EXECUTE format('TRUNCATE %s', part);
            RETURN format('emptied %s: the outbox was longer than %s rows', part, max_rows);
        ELSIF old IS NOT NULL AND NOT reconciler.unread(part, old) THEN
            UPDATE reconciler.installation SET floor_revision = greatest(floor_revision, reconciler.exact_from(part));
            EXECUTE format('TRUNCATE %s', part);
            RETURN format('emptied %s: its rows were older than %s', part, max_age);
        END IF;
    END LOOP;
    -- Move on to the next part when the one in use is worth it and the next is empty.
    part := format('reconciler.outbox_%s', here & 3)::regclass;
    -- A time in the future is of before the server's clock was set back.
    IF pg_relation_size(part) > 0 AND NOT state.rotated_at BETWEEN clock_timestamp() - rotate_after AND clock_timestamp()
       AND pg_relation_size(format('reconciler.outbox_%s', (here + 1) & 3)::regclass) = 0 THEN
        PERFORM setval('reconciler.outbox_seq', (here + 1) << 20);
        UPDATE reconciler.installation SET rotated_at = clock_timestamp();
        RETURN format('moved on to outbox_%s', (here + 1) & 3);
    END IF;
    RETURN '';
END
$$;

-- this_server says which server and database this is. A promoted standby is the same system on a later timeline.
CREATE FUNCTION reconciler.this_server(OUT system bigint, OUT timeline bigint, OUT database oid)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.system_identifier, ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint, d.oid
    FROM pg_control_system() AS c, pg_database AS d WHERE d.datname = current_database()
$$;

-- expect_server fails (SQLSTATE RC002) where this is not the server that the caller works with: a pooler may lead to another one
-- with each transaction. The detail says which it is.
CREATE FUNCTION reconciler.expect_server(system bigint, timeline bigint, database oid) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here record;
BEGIN
    SELECT * INTO here FROM reconciler.this_server();
    IF (here.system, here.timeline, here.database) IS DISTINCT FROM (expect_server.system, expect_server.timeline, expect_server.database) THEN
        RAISE EXCEPTION 'this is another server: system %, timeline %, database oid %, not system %, timeline %, database oid %',
            here.system, here.timeline, here.database, expect_server.system, expect_server.timeline, expect_server.database
            USING ERRCODE = 'RC002', DETAIL = format('%s %s %s', here.system, here.timeline, here.database);
    END IF;
END
$$;

-- sequences_behind lists the sequences whose columns hold more than they have given out, and the highest value of each
-- column. A move that copies rows alone leaves sequences at their start: logical replication, or a dump of the schema
-- and a copy of the tables.
CREATE FUNCTION reconciler.sequences_behind() RETURNS TABLE (sequence regclass, highest bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owned record;
BEGIN
    FOR owned IN
        SELECT c.oid::regclass AS sequence, d.refobjid::regclass AS relation, a.attname AS name
        FROM pg_class c
        JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
            AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
        JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        -- The table of migrations may be another role's.
        WHERE c.relnamespace = 'reconciler'::regnamespace AND c.relkind = 'S' AND pg_has_role(c.relowner, 'USAGE')
        ORDER BY c.relname
    LOOP
        sequence := owned.sequence;
        EXECUTE format('SELECT max(%I) FROM %s', owned.name, owned.relation) INTO highest;
        -- After the rows: a transaction that commits in between has taken its value before.
        IF highest > coalesce(pg_sequence_last_value(sequence), 0) THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

-- raise_sequences sets sequences that are behind beyond what their columns hold, and beyond what rows that it does not
-- see yet may add. What inserts rows before a leader has noticed the move calls it first, or when an id is taken. It
-- waits for no lock.
CREATE FUNCTION reconciler.raise_sequences() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM reconciler.sequences_behind()) THEN
        RETURN;
    END IF;
    -- A transaction that holds the row has raised all of them: setval() takes effect at once.
    PERFORM FROM reconciler.locks l WHERE l.name = 'sequences' FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        PERFORM setval(b.sequence, b.highest + 1000) FROM reconciler.sequences_behind() AS b;
    END IF;
END
$$;

-- renew_sequences sets the sequences that no column owns to the time of day. Clients know the versions of a stream, and
-- outbox rows are ordered by them, and this database may lack some of both. Writers do not wait, so values must grow even
-- if the clock was set back: the step sees to that.
CREATE FUNCTION reconciler.renew_sequences() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM setval(c.oid, reconciler.fresh_term(coalesce(pg_sequence_last_value(c.oid), 0) + (1 << 20)))
    FROM pg_class c
    WHERE c.relnamespace = 'reconciler'::regnamespace AND c.relkind = 'S'
      AND NOT EXISTS (
          SELECT FROM pg_depend d
          WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i'));
END
$$;

-- was_moved returns whether ticks, outbox and ledger come from another database than this one, or from a later state of
-- it. known is the newest revision that a process has seen.
CREATE FUNCTION reconciler.was_moved(known bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    state reconciler.installation;
    here  record;
BEGIN
    SELECT * INTO state FROM reconciler.installation;
    SELECT s.*, 'reconciler.installation'::regclass::oid AS table_oid INTO here FROM reconciler.this_server() AS s;
    -- Rows may have been copied beside an installation that no leader has seen yet.
    RETURN (state.system_identifier, state.timeline, state.database_oid, state.table_oid)
            IS DISTINCT FROM (here.system, here.timeline, here.database, here.table_oid)
            AND (state.system_identifier IS NOT NULL OR EXISTS (SELECT FROM reconciler.ticks)
                OR EXISTS (SELECT FROM reconciler.ledger))
        OR known > coalesce((SELECT max(revision) FROM reconciler.ticks), 0)
        -- Transaction ids of a server only grow, also over crashes: whatever had ended is in the WAL before the tick.
        OR EXISTS (SELECT FROM reconciler.interest() AS s
            WHERE pg_snapshot_xmax(s) > pg_snapshot_xmax(pg_current_snapshot()))
        OR EXISTS (SELECT FROM reconciler.sequences_behind());
END
$$;

-- adopt compares the database with the one that the ticks were made in. After a restore, a dump and reload, a logical
-- move, or a failover to another timeline, outbox, ticks and ledger may be older than what the targets have: everything
-- is then read again and applied anew. Terms jump to the time of day, above any that the lost part of history gave out.
-- A dump that is loaded into the same database is known by this table, which is another one then. Files that were put
-- back are those of the same server. Only a process knows then that something is missing: known is the newest revision
-- that it has seen, and those to come are above it. An old primary that comes back after a failover is no restored
-- database: a process that has seen a later timeline of the same system, or another system, is refused (SQLSTATE
-- RC002).
CREATE FUNCTION reconciler.adopt(known bigint DEFAULT 0, seen_system bigint DEFAULT NULL, seen_timeline bigint DEFAULT 0) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here  record;
    moved boolean;
BEGIN
    SELECT s.*, 'reconciler.installation'::regclass::oid AS table_oid INTO here FROM reconciler.this_server() AS s;
    IF here.system <> seen_system OR here.timeline < seen_timeline THEN
        RAISE EXCEPTION 'this server is not used: it is system %, timeline %, and system %, timeline % was seen elsewhere', here.system, here.timeline, seen_system, seen_timeline
            USING ERRCODE = 'RC002', DETAIL = format('%s %s %s', here.system, here.timeline, here.database),
                HINT = 'An old primary that came back after a failover must be stopped, or made a standby of the new one.';
    END IF;
    -- Nearly always there is nothing to do, and somebody may hold the row: start_over() in a transaction that is open.
    IF EXISTS (SELECT FROM reconciler.ticks) AND NOT reconciler.was_moved(known) THEN
        RETURN false;
    END IF;
    INSERT INTO reconciler.installation DEFAULT VALUES ON CONFLICT DO NOTHING;
    PERFORM FROM reconciler.installation FOR UPDATE;
    -- Asked under the lock: somebody else may have noticed, and started over above what is known here.
    moved := reconciler.was_moved(known);
    UPDATE reconciler.installation
    SET system_identifier = here.system, timeline = here.timeline, database_oid = here.database,
        table_oid = here.table_oid, adopted_at = clock_timestamp()
    WHERE moved OR system_identifier IS NULL;
    IF moved THEN
        INSERT INTO reconciler.ticks (revision, snapshot)
        SELECT known, pg_current_snapshot() WHERE known > coalesce((SELECT max(revision) FROM reconciler.ticks), 0);
        PERFORM reconciler.start_over('restored');
        UPDATE reconciler.targets SET lost_at = clock_timestamp();
    END IF;
    INSERT INTO reconciler.ticks (revision, snapshot) SELECT 1, pg_current_snapshot() WHERE NOT EXISTS (SELECT FROM reconciler.ticks);
    RETURN moved;
END
$$;

-- start_over forgets cursors and ticks, and has every target re-applied in full. It begins at a new revision. Outbox rows
-- before it stay, are read by nobody, and go with their part: a TRUNCATE would wait for whoever looks at the outbox (a dump)
-- or has written to it (a forgotten prepared transaction), and writers would wait for the TRUNCATE.
CREATE FUNCTION reconciler.start_over(reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    next_  bigint;
    floor_ bigint := floor(extract(epoch FROM clock_timestamp()))::bigint;
BEGIN
    PERFORM FROM reconciler.installation FOR UPDATE; -- first, as adopt() does
    PERFORM reconciler.raise_sequences(), reconciler.renew_sequences();
    UPDATE reconciler.leases SET owner = NULL, term = reconciler.fresh_term(term);
    -- The owner stays: it may take the target again at once, and others when its lease is over. Until then its calls may be under way.
    UPDATE reconciler.targets SET term = reconciler.fresh_term(term), clean = false;
    DELETE FROM reconciler.cursors;
    -- A leader that has not heard of it yet may be about to make some more revisions: they stay below.
    next_ := greatest(coalesce((SELECT max(revision) FROM reconciler.ticks), 0) + 1000, floor_);
    DELETE FROM reconciler.ticks;
    INSERT INTO reconciler.ticks (revision, snapshot) VALUES (next_, pg_current_snapshot());
    UPDATE reconciler.installation SET epoch = epoch + 1, floor_revision = next_;
    UPDATE reconciler.streams SET epoch = gen_random_uuid(), complete = false;
    -- What clients reported before confirms nothing from now on. Their sessions go on, as new ones.
    UPDATE reconciler.reports SET session_id = session_id + 1, counts_from = session_id + 1, inventory_seq = 0,
        inventory_version = 0, held = CASE WHEN held IS NOT NULL THEN 0 END WHERE session IS NOT NULL;
    DELETE FROM reconciler.instances;
    DELETE FROM reconciler.heartbeats;
    UPDATE reconciler.sync_runs SET state = 'failed', finished_at = clock_timestamp(), error = start_over.reason WHERE state IN ('requested', 'running');
    -- An owner that has not heard of it yet may just have asked for a sync.
    INSERT INTO reconciler.sync_runs (target_id, reason, verify) SELECT id, start_over.reason, true FROM reconciler.targets WHERE configured
    ON CONFLICT (target_id, coalesce(resource_id, 0)) WHERE state = 'requested' DO UPDATE SET reason = excluded.reason, verify = true;
    PERFORM pg_notify('reconciler_control', '');
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.fence IS 'Internal: locks a target and refuses a deposed owner (SQLSTATE RC001).';
COMMENT ON FUNCTION reconciler.cursor_of IS 'Internal: the cursor of a target (0: of the leader).';
COMMENT ON FUNCTION reconciler.write_cursor IS 'Internal: moves the cursor of a target (0: of the leader).';
COMMENT ON FUNCTION reconciler.fresh_term IS 'Internal: the term of a target that begins anew: the time of day in microseconds, or one more than the term of before.';
COMMENT ON FUNCTION reconciler.fence_leader IS 'Internal: locks the leadership and refuses a deposed leader (SQLSTATE RC001).';
COMMENT ON FUNCTION reconciler.beat IS 'Internal: a heartbeat of a process; it renews all that the process owns.';
COMMENT ON FUNCTION reconciler.last_beat IS 'Internal: the last heartbeat of a process.';
COMMENT ON FUNCTION reconciler.lease_lives IS 'Internal: whether the owner of a lease has sent a heartbeat within its time, by the clock of this server.';
COMMENT ON FUNCTION reconciler.unrenewed IS 'Internal: whether a lease still has the owner, the term and the last heartbeat that a process saw.';
COMMENT ON FUNCTION reconciler.interest IS 'Snapshots that outbox rows are kept for.';
COMMENT ON FUNCTION reconciler.unread IS 'Internal: whether a part of the outbox has rows that are not visible in a snapshot.';
COMMENT ON FUNCTION reconciler.unopened_in IS 'Internal: whether a part of the outbox has rows that an apply is still to be opened from.';
COMMENT ON FUNCTION reconciler.exact_from IS 'Internal: the oldest revision whose cursor has read all of a part of the outbox.';
COMMENT ON FUNCTION reconciler.retain IS 'Internal: empties one part of the outbox if that may be, and says what it did.';
COMMENT ON FUNCTION reconciler.this_server IS 'Internal: system identifier, timeline and oid of this database.';
COMMENT ON FUNCTION reconciler.expect_server IS 'Internal: fails with SQLSTATE RC002 where this is another server or database than the caller works with.';
COMMENT ON FUNCTION reconciler.sequences_behind IS 'Internal: sequences that are behind what their columns hold.';
COMMENT ON FUNCTION reconciler.raise_sequences IS 'Internal: sets sequences forward that are behind their columns.';
COMMENT ON FUNCTION reconciler.renew_sequences IS 'Internal: has the sequences of outbox and streams begin anew.';
COMMENT ON FUNCTION reconciler.was_moved IS 'Internal: whether ticks, outbox and ledger are those of another database.';
COMMENT ON FUNCTION reconciler.adopt IS 'Internal: notices that this database was restored, moved or failed over.';
COMMENT ON FUNCTION reconciler.start_over IS 'Forgets cursors and revisions and has every target re-applied in full. adopt() calls it after a restore.';

-- +goose Down
DROP FUNCTION reconciler.start_over, reconciler.adopt, reconciler.was_moved, reconciler.renew_sequences,
    reconciler.raise_sequences, reconciler.sequences_behind, reconciler.expect_server,
    reconciler.this_server, reconciler.retain, reconciler.exact_from, reconciler.unopened_in, reconciler.unread,
    reconciler.interest, reconciler.unrenewed, reconciler.lease_lives, reconciler.last_beat, reconciler.beat,
    reconciler.write_cursor, reconciler.cursor_of,
    reconciler.fence_leader, reconciler.fresh_term, reconciler.fence;
