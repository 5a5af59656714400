-- +goose Up

-- Cursor, fencing, retention and the identity of the database.

-- +goose StatementBegin
-- fence locks a target for the rest of the transaction and refuses a deposed owner (SQLSTATE RC001). Every write of
-- an owner starts with it. The lock is what makes it exact: a takeover in another transaction waits, or is seen.
CREATE FUNCTION reconciler.fence(target_id integer, owner uuid, term bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM reconciler.targets t WHERE t.id = fence.target_id AND t.owner = fence.owner AND t.term = fence.term FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'target % was taken over by another process: term % is over', fence.target_id, fence.term USING ERRCODE = 'RC001';
    END IF;
END
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

-- interest lists the snapshots that outbox rows are still kept for: the last tick's, and every consumer's.
CREATE FUNCTION reconciler.interest() RETURNS SETOF pg_snapshot
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    (SELECT snapshot FROM reconciler.ticks ORDER BY revision DESC LIMIT 1)
    UNION ALL SELECT cursor_snapshot FROM reconciler.targets t, reconciler.settings s WHERE t.cursor_snapshot IS NOT NULL AND t.cursor_revision >= s.floor_revision
    UNION ALL SELECT cursor_snapshot FROM reconciler.leases WHERE cursor_snapshot IS NOT NULL
$$;

-- unread says whether a part of the outbox has a row that a consumer standing at this snapshot has not read.
CREATE FUNCTION reconciler.unread(part regclass, snapshot pg_snapshot) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_ boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM %1$s WHERE xid >= $1) OR EXISTS (SELECT FROM %1$s WHERE xid = ANY ($2))', part)
    INTO found_ USING pg_snapshot_xmax(snapshot), ARRAY(SELECT pg_snapshot_xip(snapshot));
    RETURN found_;
END
$$;

-- remember_cut_off gives objects that unread changes in a part of the outbox name their ledger rows before these changes
-- go, at targets that may have been called for them: those with an owner, and those whose last owner crashed. No event and
-- no row might name such an object any more, so that a full sync could not know of it. They are absent as far as is known:
-- an owner that knows its target drops what no row wants, one that does not deletes it to be sure. No owner has more in
-- hand than the first 65536 (apply.openObjects is half of it); keys of more than 2000 bytes are never called. Whose cursor
-- is below the floor already holds up no part, and is cut off from each all the same.
CREATE FUNCTION reconciler.remember_cut_off(part regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT x.id, x.name, x.cursor_snapshot FROM reconciler.targets x
             WHERE (x.owner IS NOT NULL OR NOT x.clean) AND reconciler.unread(part, x.cursor_snapshot) ORDER BY x.id LOOP
        EXECUTE format($code$
            INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at)
            SELECT $1, c.resource_id, c.key, 'pending', true, false, clock_timestamp()
            FROM (SELECT o.resource_id, o.key FROM %s AS o
                  WHERE o.dependency_id IS NULL AND octet_length(o.key) <= 2000 AND (o.target IS NULL OR o.target = $2) AND (o.xid >= pg_snapshot_xmax($3) OR o.xid = ANY (ARRAY(SELECT pg_snapshot_xip($3))))
                  GROUP BY o.resource_id, o.key ORDER BY min(o.seq) LIMIT 65536) AS c
            WHERE EXISTS (SELECT FROM reconciler.resources r WHERE r.id = c.resource_id)
            ORDER BY c.resource_id, c.key COLLATE "C"
            ON CONFLICT DO NOTHING$code$, part) USING t.id, t.name, t.cursor_snapshot;
    END LOOP;
END
$$;

-- retain empties at most one part of the outbox and says what it did: '' for nothing. A part goes when every row in it
-- is read by everybody, or when it is older than max_age or the outbox longer than max_rows; in the latter two cases
-- consumers that had not read it are told by floor_revision. The part is locked first (never waiting), so no
-- transaction can have an uncommitted row in it. The part in use is never touched.
CREATE FUNCTION reconciler.retain(max_age interval, max_rows bigint, rotate_after interval) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here     bigint := (SELECT last_value >> 20 FROM reconciler.outbox_seq);
    part     regclass;
    old_tick record;
    newest   record;
    first_   bigint;
    used     boolean;
    state    reconciler.settings;
BEGIN
    SELECT * INTO state FROM reconciler.settings FOR NO KEY UPDATE;
    SELECT * INTO newest FROM reconciler.ticks ORDER BY revision DESC LIMIT 1;
    SELECT * INTO old_tick FROM reconciler.ticks WHERE at < clock_timestamp() - max_age ORDER BY revision DESC LIMIT 1;
    FOR i IN 1..3 LOOP -- the oldest first
        part := format('reconciler.outbox_%s', (here + i) & 3)::regclass;
        CONTINUE WHEN pg_relation_size(part) = 0;
        BEGIN
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', part);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
        IF NOT EXISTS (SELECT FROM reconciler.interest() AS s WHERE reconciler.unread(part, s)) THEN
            PERFORM reconciler.remember_cut_off(part);
            EXECUTE format('TRUNCATE %s', part);
            RETURN format('emptied %s: everybody has read it', part);
        END IF;
        -- Never drop what no tick has covered yet: nobody could know that it is missing.
        CONTINUE WHEN newest.revision IS NULL OR reconciler.unread(part, newest.snapshot);
        EXECUTE format('SELECT seq FROM %s LIMIT 1', part) INTO first_;
        -- Numbers bound the rows and no more: each turn of the parts skips some. Counting is for when they could be too many.
        IF (SELECT last_value FROM reconciler.outbox_seq) - first_ > max_rows
           AND (SELECT count(*) FROM (SELECT FROM reconciler.outbox LIMIT max_rows + 1) AS counted) > max_rows THEN
            PERFORM reconciler.remember_cut_off(part);
            UPDATE reconciler.settings SET floor_revision = newest.revision;
            EXECUTE format('TRUNCATE %s', part);
            RETURN format('emptied %s: the outbox was longer than %s rows', part, max_rows);
        ELSIF old_tick.revision IS NOT NULL AND NOT reconciler.unread(part, old_tick.snapshot) THEN
            PERFORM reconciler.remember_cut_off(part);
            UPDATE reconciler.settings SET floor_revision = greatest(floor_revision, old_tick.revision);
            EXECUTE format('TRUNCATE %s', part);
            RETURN format('emptied %s: its rows were older than %s', part, max_age);
        END IF;
    END LOOP;
    -- Move on to the next part when the one in use is worth it and the next is empty.
    part := format('reconciler.outbox_%s', here & 3)::regclass;
    IF pg_relation_size(part) > 0 AND state.rotated_at < clock_timestamp() - rotate_after
       AND pg_relation_size(format('reconciler.outbox_%s', (here + 1) & 3)::regclass) = 0 THEN
        PERFORM setval('reconciler.outbox_seq', (here + 1) << 20);
        UPDATE reconciler.settings SET rotated_at = clock_timestamp();
        RETURN format('moved on to outbox_%s', (here + 1) & 3);
    END IF;
    RETURN '';
END
$$;

-- adopt compares the database with the one that the ticks were made in. After a restore, a dump and reload, or a
-- failover to another timeline, outbox, ticks and ledger may be older than what the targets have: everything is then
-- read again and applied anew. Terms jump to the time of day, above any that the lost part of history gave out.
-- Files that were put back are those of the same server. Only a process knows then that something is missing: known is
-- the newest revision that it has seen, and those to come are above it.
CREATE FUNCTION reconciler.adopt(known bigint DEFAULT 0) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    state  reconciler.settings;
    sysid  bigint := (SELECT system_identifier FROM pg_control_system());
    line   text := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    dbid   oid := (SELECT oid FROM pg_database WHERE datname = current_database());
    lost   boolean;
BEGIN
    SELECT * INTO state FROM reconciler.settings FOR UPDATE;
    -- Read under the lock: somebody else may have noticed, and started over above what is known here.
    lost := known > coalesce((SELECT max(revision) FROM reconciler.ticks), 0);
    IF (state.system_identifier, state.timeline, state.database_oid) IS NOT DISTINCT FROM (sysid, line, dbid) AND NOT lost THEN
        RETURN false;
    END IF;
    UPDATE reconciler.settings SET system_identifier = sysid, timeline = line, database_oid = dbid;
    IF lost THEN
        INSERT INTO reconciler.ticks (revision, snapshot) VALUES (known, pg_current_snapshot());
    END IF;
    IF lost OR state.system_identifier IS NOT NULL THEN
        PERFORM reconciler.start_over('restored');
        RETURN true;
    END IF;
    INSERT INTO reconciler.ticks (revision, snapshot) SELECT 1, pg_current_snapshot() WHERE NOT EXISTS (SELECT FROM reconciler.ticks);
    RETURN false;
END
$$;

-- start_over forgets cursors, ticks and outbox, and has every target re-applied in full.
CREATE FUNCTION reconciler.start_over(reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    next_ bigint := coalesce((SELECT max(revision) FROM reconciler.ticks), 0) + 1;
    floor_ bigint := floor(extract(epoch FROM clock_timestamp()))::bigint;
BEGIN
    TRUNCATE reconciler.outbox, reconciler.ticks;
    next_ := greatest(next_, floor_);
    INSERT INTO reconciler.ticks (revision, snapshot) VALUES (next_, pg_current_snapshot());
    UPDATE reconciler.settings SET epoch = epoch + 1, floor_revision = next_;
    UPDATE reconciler.leases SET owner = NULL, lease_until = NULL, term = greatest(term, floor_), cursor_revision = NULL, cursor_snapshot = NULL;
    UPDATE reconciler.targets SET owner = NULL, lease_until = NULL, term = greatest(term, floor_), clean = false,
        cursor_revision = NULL, cursor_snapshot = NULL, batch_revision = NULL, batch_snapshot = NULL, batch_xid = NULL, batch_seq = NULL;
    DELETE FROM reconciler.instances;
    UPDATE reconciler.sync_runs SET state = 'failed', finished_at = clock_timestamp(), error = start_over.reason WHERE state IN ('requested', 'running');
    -- An owner that has not heard of it yet may just have asked for a sync.
    INSERT INTO reconciler.sync_runs (target_id, reason, verify) SELECT id, start_over.reason, true FROM reconciler.targets WHERE configured
    ON CONFLICT (target_id, coalesce(resource_id, 0)) WHERE state = 'requested' DO UPDATE SET reason = excluded.reason, verify = true;
    PERFORM pg_notify('reconciler_control', '');
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.fence IS 'Internal: locks a target and refuses a deposed owner (SQLSTATE RC001).';
COMMENT ON FUNCTION reconciler.fence_leader IS 'Internal: locks the leadership and refuses a deposed leader (SQLSTATE RC001).';
COMMENT ON FUNCTION reconciler.interest IS 'Snapshots that outbox rows are kept for.';
COMMENT ON FUNCTION reconciler.remember_cut_off IS 'Internal: records the objects that are named by changes which retention is about to drop unread.';
COMMENT ON FUNCTION reconciler.unread IS 'Internal: whether a part of the outbox has rows that are not visible in a snapshot.';
COMMENT ON FUNCTION reconciler.retain IS 'Internal: empties one part of the outbox if that may be, and says what it did.';
COMMENT ON FUNCTION reconciler.adopt IS 'Internal: notices that this database was restored, reloaded or failed over.';
COMMENT ON FUNCTION reconciler.start_over IS 'Forgets cursors and outbox and has every target re-applied in full. adopt() calls it after a restore.';

-- +goose Down
DROP FUNCTION reconciler.start_over, reconciler.adopt, reconciler.retain, reconciler.remember_cut_off, reconciler.unread, reconciler.interest, reconciler.fence_leader, reconciler.fence;
