-- +goose Up

-- doctor(): everything that is known to go wrong, looked at, with what mends it. A check that finds nothing wrong says so
-- in one row, so that a person sees what was looked at.

-- +goose StatementBegin
CREATE FUNCTION reconciler.doctor_schema() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    version bigint;
BEGIN
    IF to_regclass('reconciler.goose_db_version') IS NULL THEN
        RETURN QUERY SELECT 'schema', false, 'nothing says which version the schema has', 'reconciler migrate up';
        RETURN;
    END IF;
    EXECUTE 'SELECT max(version_id) FROM reconciler.goose_db_version WHERE is_applied' INTO version;
    RETURN QUERY SELECT 'schema', true, format('the schema has version %s', version), NULL::text;
END
$$;

CREATE FUNCTION reconciler.doctor_capture() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH problems AS (SELECT * FROM reconciler.capture_problems())
    SELECT 'capture', false, format('resource %s: %s', p.resource, p.problem), p.remedy FROM problems p
    UNION ALL
    SELECT 'capture', true, format('%s captured', reconciler.counted(count(*), 'resource')), NULL FROM reconciler.resources WHERE removed_at IS NULL HAVING NOT EXISTS (SELECT FROM problems)
$$;

CREATE FUNCTION reconciler.doctor_index() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH advice AS (
        SELECT r.name, reconciler.index_advice(r.id) AS statement FROM reconciler.resources r
        WHERE r.removed_at IS NULL
          -- Reading a megabyte for each page hurts nobody.
          AND (SELECT sum(pg_relation_size(p)) FROM reconciler.partitions(r.relation) AS p) > 1 << 20
    )
    SELECT 'index', false, format('a sync of resource %s has no index to walk and scans the table for each page', a.name), a.statement FROM advice a WHERE a.statement IS NOT NULL
    UNION ALL
    SELECT 'index', true, 'syncs have an index to walk, or need none', NULL WHERE NOT EXISTS (SELECT FROM advice WHERE statement IS NOT NULL)
$$;

CREATE FUNCTION reconciler.doctor_notify() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'notify_queue', u < 0.1, format('the NOTIFY queue of the server is %s %% full', round(u::numeric * 100, 1)),
        CASE WHEN u >= 0.1 THEN 'End the session that LISTENs and sits in a transaction; a full queue fails every commit that notifies.' END
    FROM pg_notification_queue_usage() AS u
    UNION ALL
    SELECT 'prepared_transactions', n = 0 OR NOT s.notify,
        CASE WHEN NOT s.notify THEN 'NOTIFY is off: transactions may be prepared' WHEN n = 0 THEN 'no transaction is prepared'
             ELSE format('%s in this database, while NOTIFY is on: PREPARE TRANSACTION fails after a write to a tracked table that notified', reconciler.counted(n, 'prepared transaction')) END,
        CASE WHEN n > 0 AND s.notify THEN 'SELECT reconciler.set_notify(false);' END
    FROM reconciler.settings s, (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()) AS p(n)
$$;

-- Only transactions that wrote something count: their changes are seen when they end, and keep their part of the outbox.
CREATE FUNCTION reconciler.doctor_transactions(older_than interval DEFAULT '5 minutes') RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH old AS (
        SELECT format('pid %s (%s, user %s) has a transaction open since %s that wrote', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'), a.usename, date_trunc('second', a.xact_start)) AS finding,
            format('End it, or: SELECT pg_terminate_backend(%s);', a.pid) AS remedy
        FROM pg_stat_activity a WHERE a.datname = current_database() AND a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid() AND a.xact_start < clock_timestamp() - older_than
        UNION ALL
        SELECT format('transaction %s was prepared at %s and is not ended', quote_literal(p.gid), date_trunc('second', p.prepared)), format('COMMIT PREPARED %1$L; or ROLLBACK PREPARED %1$L;', p.gid)
        FROM pg_prepared_xacts p WHERE p.database = current_database() AND p.prepared < clock_timestamp() - older_than
    )
    SELECT 'open_transactions', false, o.finding || '; its changes are seen when it ends', o.remedy FROM old o
    UNION ALL
    SELECT 'open_transactions', true, CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN 'no transaction with changes has been open for long'
        ELSE format('role %s sees its own transactions only; GRANT pg_read_all_stats TO %s; shows all', quote_ident(current_user), quote_ident(current_user)) END, NULL
    WHERE NOT EXISTS (SELECT FROM old)
$$;

-- Who keeps old versions of rows from being removed, apart from the transactions that doctor_transactions names. Slots and
-- standbys have no time of their own: theirs is that of the first revision which they may not have seen.
CREATE FUNCTION reconciler.doctor_snapshots(older_than interval DEFAULT '5 minutes') RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH remote AS (
        SELECT CASE WHEN s.xmin IS NULL THEN 'the catalogs'' rows' ELSE 'rows' END AS what, format('replication slot %L', s.slot_name) AS name, coalesce(s.xmin, s.catalog_xmin) AS xmin,
            CASE WHEN NOT s.active THEN format('Start what reads it, or: SELECT pg_drop_replication_slot(%L);', s.slot_name)
                WHEN s.xmin IS NULL THEN 'See why what reads it does not keep up.'
                ELSE 'End the long transaction on the standby that uses it, or set hot_standby_feedback = off there.' END AS remedy
        FROM pg_replication_slots s WHERE s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL AND s.database = current_database()
        UNION ALL
        SELECT 'rows', format('standby %s (%s)', coalesce(host(r.client_addr), 'on this machine'), coalesce(nullif(r.application_name, ''), 'unnamed')), r.backend_xmin,
            'End the long transaction there, or set hot_standby_feedback = off there.'
        FROM pg_stat_replication r WHERE r.backend_xmin IS NOT NULL
    ), old AS (
        SELECT format('pid %s (%s, user %s) has had a transaction open since %s that only reads', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'), a.usename, date_trunc('second', a.xact_start)) AS who,
            'rows' AS what, format('End it, or: SELECT pg_terminate_backend(%s);', a.pid) AS remedy
        FROM pg_stat_activity a
        WHERE a.datname = current_database() AND a.backend_xmin IS NOT NULL AND a.backend_xid IS NULL AND a.pid <> pg_backend_pid()
          AND a.backend_type NOT IN ('walsender', 'parallel worker', 'autovacuum worker') AND a.xact_start < clock_timestamp() - older_than
        UNION ALL
        SELECT format('%s has stood still since %s', r.name, date_trunc('second', k.at)), r.what, r.remedy
        FROM remote r CROSS JOIN LATERAL (
            SELECT k.at FROM reconciler.ticks k
            WHERE pg_snapshot_xmax(k.snapshot)::text::bigint > pg_snapshot_xmax(pg_current_snapshot())::text::bigint - age(r.xmin) ORDER BY k.revision LIMIT 1) AS k
        WHERE k.at < clock_timestamp() - older_than
    )
    SELECT 'old_snapshots', false, format('%s; PostgreSQL keeps every version of %s that was replaced since', o.who, o.what), o.remedy FROM old o
    UNION ALL
    SELECT 'old_snapshots', true, 'nothing that only reads keeps old versions of rows', NULL WHERE NOT EXISTS (SELECT FROM old)
$$;

CREATE FUNCTION reconciler.doctor_outbox() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH late AS (
        SELECT t.name, format('%s is behind the outbox since %s', t.name, date_trunc('second', k.at)) AS finding
        FROM reconciler.targets t CROSS JOIN LATERAL reconciler.cursor_of(t.id) AS c CROSS JOIN LATERAL (SELECT k.at FROM reconciler.ticks k WHERE k.revision > c.revision ORDER BY k.revision LIMIT 1) AS k
        WHERE t.configured AND k.at < clock_timestamp() - interval '5 minutes'
        UNION ALL
        SELECT t.name, format('%s was away longer than the outbox keeps changes', t.name)
        FROM reconciler.installation s, reconciler.targets t CROSS JOIN LATERAL reconciler.cursor_of(t.id) AS c WHERE t.configured AND c.revision < s.floor_revision
    )
    SELECT 'outbox', false, l.finding, format('SELECT * FROM reconciler.status WHERE target = %L;', l.name) FROM late l
    UNION ALL
    SELECT 'outbox', true, format('the outbox takes %s; no target is far behind', pg_size_pretty(sum(pg_total_relation_size(p)))), NULL
    FROM reconciler.partitions('reconciler.outbox') AS p HAVING NOT EXISTS (SELECT FROM late)
$$;

CREATE FUNCTION reconciler.doctor_processes() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'leader', l.lives, reconciler.leader_text(), CASE WHEN NOT l.lives THEN 'reconciler run' END
    FROM (SELECT reconciler.lease_lives(x.owner, x.lease_ttl) AS lives FROM reconciler.leases x WHERE x.name = 'tick') AS l
    UNION ALL
    SELECT 'clock', latest <= clock_timestamp() + interval '1 minute',
        CASE WHEN latest <= clock_timestamp() + interval '1 minute' THEN 'nothing is dated in the future' ELSE format('the database has times up to %s: its clock was set back', date_trunc('second', latest)) END,
        CASE WHEN latest > clock_timestamp() + interval '1 minute' THEN 'If the clock of the database server is wrong now, set it. '
            'Retries that were scheduled while it was ahead run within about an hour, or within backoff.max if that is longer; '
            'retry() runs them now.' END
    FROM (SELECT greatest((SELECT max(b.at) FROM reconciler.instances i CROSS JOIN LATERAL reconciler.last_beat(i.id) AS b), (SELECT k.at FROM reconciler.ticks k ORDER BY k.revision DESC LIMIT 1), '-infinity')) AS c(latest)
    UNION ALL
    SELECT 'connections', most - used >= 10, format('%s of %s connections are in use', used, most), CASE WHEN most - used < 10 THEN 'Raise max_connections, or put a pooler before database_url.' END
    FROM (SELECT count(*) AS used, current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer AS most
          FROM pg_stat_activity WHERE backend_type = 'client backend') AS c
$$;

CREATE FUNCTION reconciler.doctor_loops() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH found AS (
        SELECT format('%s of process %s has been failing since %s (%s times): %s', f.loop || coalesce(' of target ' || f.target, ''), f.process, date_trunc('second', f.since), f.failures, f.error) AS finding,
            'Mend what the error says; it is tried again by itself. The log of the process has more.' AS remedy
        FROM reconciler.failing_loops f
        UNION ALL
        -- A process that cannot write cannot say so here.
        SELECT format('process %s has not been heard of since %s', i.name, date_trunc('second', coalesce(b.at, i.started_at))),
            'See whether it runs and reaches this database; its log and /readyz say what fails. Remains of a process that is gone vanish by themselves once another one runs.'
        FROM reconciler.instances i CROSS JOIN LATERAL reconciler.last_beat(i.id) AS b WHERE coalesce(b.at, i.started_at) < clock_timestamp() - interval '15 seconds'
    )
    SELECT 'loops', false, f.finding, f.remedy FROM found f
    UNION ALL
    SELECT 'loops', true, 'no part of a process fails again and again', NULL WHERE NOT EXISTS (SELECT FROM found)
$$;

-- Locks that keep the product from something, and who holds them.
CREATE FUNCTION reconciler.doctor_locks() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH found AS (
        -- A writer probes the lock for an instant; a session that does nothing while it has it is none.
        SELECT format('pid %s (%s, user %s) holds the advisory lock of the sleeping leader: the leader polls, and changes cost it more', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'), a.usename) AS finding,
            format('End it, or: SELECT pg_terminate_backend(%s);', a.pid) AS remedy
        FROM pg_locks l JOIN pg_stat_activity a USING (pid)
        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
            AND l.classid::bigint << 32 | l.objid::bigint = reconciler.sleep_lock() AND (l.mode = 'ExclusiveLock' OR a.state <> 'active')
            AND NOT EXISTS (SELECT FROM reconciler.instances i WHERE a.application_name = left(format('reconciler %s leader', i.name), 63))
        UNION ALL
        SELECT format('%s defines resources since %s: track() and its like wait', d.holder, date_trunc('second', d.since)), d.remedy
        FROM reconciler.defining() AS d WHERE d.since < clock_timestamp() - interval '10 seconds' OR d.since IS NULL
    )
    SELECT 'locks', false, f.finding, f.remedy FROM found f
    UNION ALL
    SELECT 'locks', true, 'nobody holds a lock that others wait for', NULL WHERE NOT EXISTS (SELECT FROM found)
$$;

CREATE FUNCTION reconciler.doctor_targets() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH found AS (
        SELECT t.name, f.*
        FROM reconciler.targets t CROSS JOIN LATERAL (
            SELECT format('no process works on %s', t.name), format('Start `reconciler run` with %s in its config.', t.name) WHERE t.configured AND NOT reconciler.lease_lives(t.owner, t.lease_ttl)
            UNION ALL
            SELECT format('running rows of %s name target %s, which is in no running process''s config', w, t.name), format('Put %s into the config of a process, or correct the rows.', t.name)
            FROM reconciler.wanting(t.name) AS w WHERE NOT t.configured AND w IS NOT NULL
            UNION ALL
            SELECT format('%s has other options in process %s: %s', t.name,
                    string_agg(o.process, ' than in process ' ORDER BY o.current, o.process),
                    coalesce('those of process ' || min(o.process) FILTER (WHERE o.current) || ' count until every process with them has stopped',
                        'what it has depends on which of them owns it')),
                'Give it the same driver and options in every config, and restart the processes that have others.'
            FROM (SELECT u.options, u.options IS NOT DISTINCT FROM t.options_fingerprint AS current, min(i.name) AS process
                  FROM reconciler.instances i CROSS JOIN LATERAL reconciler.last_beat(i.id) AS b
                  CROSS JOIN LATERAL unnest(i.targets, i.options) AS u(target, options)
                  WHERE u.target = t.name AND u.options IS NOT NULL AND b.at > clock_timestamp() - interval '15 seconds'
                  GROUP BY u.options) AS o HAVING count(*) > 1
            UNION ALL
            SELECT format('commits may have been lost when this database was restored or failed over at %s, and what they had created in %s stays there: it cannot say what it has', date_trunc('second', t.lost_at), t.name),
                format('Compare it with the rows, and delete there what no row wants; then %s', reconciler.quote_call('acknowledge', ARRAY[t.name]))
            WHERE t.configured AND t.lost_at IS NOT NULL AND NOT EXISTS (SELECT FROM reconciler.sync_runs s WHERE s.target_id = t.id AND s.resource_id IS NULL AND s.state IN ('requested', 'running'))
            UNION ALL
            SELECT format('%s may remain at %s, where %s was until %s', reconciler.counted(p.objects, 'object'), p.place, t.name, date_trunc('second', p.at)),
                format('Compare that place with the rows, and delete there what is not wanted; then %s', reconciler.quote_call('acknowledge', ARRAY[t.name]))
            FROM reconciler.left_places p WHERE p.target_id = t.id
            UNION ALL
            SELECT format('%s and %s have the same place, %s: a row that moves between them could be deleted where it arrives', t.name, o.name, t.place),
                'Give each its own in the config of its processes.'
            FROM reconciler.targets o WHERE o.place_key = t.place_key AND t.place_key <> '' AND o.name > t.name AND o.configured AND t.configured
            UNION ALL
            SELECT format('%s is in no running process''s config, and keeps %s', t.name, reconciler.counted(n, 'object')), reconciler.quote_call('release', ARRAY[t.name])
            FROM (SELECT count(*) FROM reconciler.ledger l WHERE l.target_id = t.id AND NOT t.configured) AS c(n) WHERE n > 0
            UNION ALL
            SELECT format('%s %s', t.name, reconciler.circuit_text(t)), 'Mend the target; calls go on by themselves when it answers.' WHERE t.circuit_open_since IS NOT NULL
            UNION ALL
            SELECT format('%s: %s', t.name, t.trouble), 'Mend it; it is tried again by itself.' WHERE t.trouble IS NOT NULL AND t.owner IS NOT NULL
            UNION ALL
            SELECT format('%s of %s are not as their rows ask: a sync has only reported them (sync_mode: report)', reconciler.counted(n, 'object'), t.name),
                format('Look at SELECT * FROM reconciler.drift WHERE target = %L; then %s', t.name, reconciler.quote_call('resync', ARRAY[t.name]))
            FROM (SELECT count(*) FROM (SELECT FROM reconciler.drift_found d WHERE d.target_id = t.id AND t.configured AND reconciler.left_alone(d) LIMIT 10000) AS x) AS c(n) WHERE n > 0
            UNION ALL
            SELECT format('the guard of %s holds %s', t.name, reconciler.deletes_text(n, protected)), format('Look at SELECT * FROM reconciler.held WHERE target = %L; then %s', t.name, reconciler.quote_call('approve', ARRAY[t.name]))
            FROM (SELECT count(*), count(*) FILTER (WHERE l.protected) FROM reconciler.ledger l WHERE l.target_id = t.id AND l.state = 'held' AND l.held_by = 'guard') AS c(n, protected) WHERE n > 0
            UNION ALL
            SELECT format('%s is %s', t.name, reconciler.pause_text(t)), reconciler.quote_call('resume', ARRAY[t.name]) WHERE t.paused_at < clock_timestamp() - interval '1 day'
        ) AS f(finding, remedy)
    )
    SELECT 'targets', false, f.finding, f.remedy FROM found f
    UNION ALL
    SELECT 'targets', true, format('%s, nothing is in the way', reconciler.counted(count(*), 'target')), NULL FROM reconciler.targets HAVING NOT EXISTS (SELECT FROM found)
$$;

CREATE FUNCTION reconciler.doctor_objects() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH unwell AS (
        SELECT t.name AS target, r.name AS resource, l.state, count(*) AS n, min(l.key) AS key, max(l.attempts) AS attempts, (array_agg(l.last_error ORDER BY l.key))[1] AS error
        FROM reconciler.ledger l JOIN reconciler.targets t ON t.id = l.target_id JOIN reconciler.resources r ON r.id = l.resource_id
        -- The first failure of an object is often its last.
        WHERE l.state = 'blocked' OR l.state = 'failing' AND l.attempts > 1 GROUP BY t.name, r.name, l.state
    )
    SELECT 'objects', false, format('%s of %s blocked in %s, such as %s: %s', reconciler.counted(b.n, 'object'), b.resource, b.target, quote_literal(b.key), coalesce(b.error, 'no reason known')),
        format('Correct the rows; or after mending what refused them: %s', reconciler.quote_call('retry', ARRAY[b.target, b.resource])) FROM unwell b WHERE b.state = 'blocked'
    UNION ALL
    SELECT 'objects', false, format('%s of %s failing in %s after up to %s, such as %s: %s', reconciler.counted(f.n, 'object'), f.resource, f.target, reconciler.counted(f.attempts, 'attempt'), quote_literal(f.key), coalesce(f.error, 'no reason known')),
        format('Mend what the error says; they are tried again by themselves. To have it now: %s', reconciler.quote_call('retry', ARRAY[f.target, f.resource])) FROM unwell f WHERE f.state = 'failing'
    UNION ALL
    SELECT 'objects', false, format('a running row of %s with key %s can be no object: %s', r.name, coalesce(quote_literal(m.key), 'NULL'), m.reason), 'Correct the row.'
    FROM reconciler.misfits m JOIN reconciler.resources r ON r.id = m.resource_id
    UNION ALL
    SELECT 'objects', true, 'no object is blocked, none fails again and again', NULL WHERE NOT EXISTS (SELECT FROM unwell) AND NOT EXISTS (SELECT FROM reconciler.misfits)
$$;

CREATE FUNCTION reconciler.doctor_rights() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH kinds AS (
        SELECT k.kind, k.n, m.lacking, m.example, EXISTS (SELECT FROM reconciler.grants g WHERE g.role_name = current_user AND g.kind = k.kind) AS granted
        FROM unnest('{viewer,operator,runtime,definer}'::text[]) WITH ORDINALITY AS k(kind, n)
        CROSS JOIN LATERAL (SELECT count(*), min(format('%s on %s %s', x.privilege, lower(x.class), x.object)) FROM reconciler.missing_rights(current_user, k.kind) AS x) AS m(lacking, example)
    )
    SELECT 'rights', false, format('role %s was made %s and lacks %s, such as %s', quote_ident(current_user), k.kind, reconciler.counted(k.lacking, 'right'), k.example),
        format('As the owner of the schema: %s', reconciler.quote_call('grant', ARRAY[current_user, k.kind])) FROM kinds k WHERE k.granted AND k.lacking > 0
    UNION ALL
    SELECT 'rights', true, format('role %s has the rights of: %s', quote_ident(current_user), coalesce(string_agg(k.kind, ', ' ORDER BY k.n) FILTER (WHERE k.lacking = 0), 'none')), NULL FROM kinds k
    HAVING NOT bool_or(k.granted AND k.lacking > 0)
$$;

-- A stream is complete once a full sync that repairs has ended. Without one its watchers wait for ever.
CREATE FUNCTION reconciler.doctor_streams() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH incomplete AS (
        SELECT t.name, r.state, r.mode, r.error FROM reconciler.streams s JOIN reconciler.targets t ON t.id = s.target_id
        CROSS JOIN LATERAL (SELECT x.* FROM reconciler.sync_runs x
            WHERE x.target_id = s.target_id AND x.resource_id IS NULL AND x.finished_at IS NOT NULL ORDER BY x.id DESC LIMIT 1) AS r
        WHERE NOT s.complete AND NOT EXISTS (SELECT FROM reconciler.sync_runs x WHERE x.target_id = s.target_id AND x.state = 'running')
    ), failed AS (
        SELECT t.name, x.trouble FROM reconciler.targets t CROSS JOIN LATERAL (SELECT reconciler.observed_trouble(t.id)) AS x (trouble) WHERE x.trouble IS NOT NULL
    ), unreported AS (
        SELECT t.name, n.objects, n.since, i.reported_at FROM reconciler.streams s JOIN reconciler.targets t ON t.id = s.target_id
        LEFT JOIN reconciler.reports i ON i.target_id = s.target_id
        CROSS JOIN LATERAL (SELECT count(*) AS objects, min(p.at) AS since FROM reconciler.ledger l JOIN reconciler.resources r ON r.id = l.resource_id
            CROSS JOIN LATERAL (SELECT x.at FROM reconciler.published x
                WHERE x.target_id = l.target_id AND x.resource = r.name AND x.key = l.key ORDER BY x.version DESC LIMIT 1) AS p
            WHERE l.target_id = s.target_id AND l.state = 'pending' AND p.at < clock_timestamp() - interval '5 minutes') AS n
        WHERE s.ack AND n.objects > 0
    )
    SELECT 'streams', false, format('stream %s is not complete, and its watchers wait: %s', i.name,
            CASE WHEN i.state = 'failed' THEN 'its last full sync failed: ' || i.error
                WHEN i.error IS NOT NULL THEN 'its last full sync could not read everything: ' || i.error WHEN i.mode = 'report' THEN 'its syncs only report' ELSE 'it waits for a full sync' END),
        format('SELECT reconciler.resync(%L);', i.name) FROM incomplete i
    UNION ALL
    SELECT 'streams', false, format('%s: %s', f.name, f.trouble),
        format('Mend what the messages name; SELECT * FROM reconciler.objects WHERE target = %L AND observed_state = ''failed''; lists them', f.name) FROM failed f
    UNION ALL
    SELECT 'streams', false, format('%s: %s for a report of the client, the first since %s; %s', u.name,
            CASE WHEN u.objects = 1 THEN '1 object waits' ELSE format('%s objects wait', u.objects) END, date_trunc('second', u.since),
            CASE WHEN u.reported_at IS NULL THEN 'none has ever come' ELSE format('the last one came at %s', date_trunc('second', u.reported_at)) END),
        'See whether the client runs, and may report; SELECT * FROM reconciler.stream_reports' FROM unreported u
    UNION ALL
    SELECT 'streams', true, format('%s complete', reconciler.counted(count(*), 'stream')), NULL FROM reconciler.streams s WHERE s.complete
    HAVING count(*) > 0 AND NOT EXISTS (SELECT FROM incomplete) AND NOT EXISTS (SELECT FROM failed) AND NOT EXISTS (SELECT FROM unreported)
$$;

-- minor_version returns the major and the minor number of a version; NULL for a development build.
CREATE FUNCTION reconciler.minor_version(version text) RETURNS integer[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT regexp_match(minor_version.version, '^v?(\d{1,9})\.(\d{1,9})(?!\d)')::integer[]
$$;

CREATE FUNCTION reconciler.doctor_agents() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH process AS (
        SELECT i.name, i.version, reconciler.minor_version(i.version) AS minor
        FROM reconciler.instances i CROSS JOIN LATERAL reconciler.last_beat(i.id) AS b
        WHERE b.at > clock_timestamp() - interval '15 seconds' AND reconciler.minor_version(i.version) IS NOT NULL
        ORDER BY minor DESC, i.name LIMIT 1
    ), found AS (
        -- A client that ends may still send something while the next one begins.
        SELECT format('two clients report on %s: %s, and %s, whose reports are ignored', t.name, coalesce(p.client_name, p.session), p.ignored_client) AS finding,
            'Stop one of them. To have one stand by for the other, let them elect a leader on the far side.' AS remedy
        FROM reconciler.reports p JOIN reconciler.targets t ON t.id = p.target_id
        WHERE p.ignored_at > p.session_since + interval '1 minute' AND p.ignored_at > clock_timestamp() - interval '5 minutes'
        UNION ALL
        SELECT format('agent %s of %s has not reported since %s; an agent reports each minute', a.name, a.target, date_trunc('second', a.last_report)),
            'See whether it runs, reaches this server, and may report; its log and `reconciler agent status` have the reason.'
        FROM reconciler.agents a WHERE a.last_report < clock_timestamp() - interval '5 minutes'
        UNION ALL
        SELECT format('agent %s of %s: %s', a.name, a.target, a.trouble), 'Fix it on the far side; the agent goes on by itself.'
        FROM reconciler.agents a WHERE a.trouble IS NOT NULL
        UNION ALL
        SELECT format('the guard of agent %s holds %s of %s', a.name, reconciler.counted(a.held, 'delete'), a.target),
            format('If they are right: %s or, on its host: reconciler agent approve %s', reconciler.quote_call('approve', ARRAY[a.target]), a.target)
        FROM reconciler.agents a WHERE a.held > 0
        UNION ALL
        SELECT format('agent %s of %s has version %s, and process %s version %s', a.name, a.target, a.version, p.name, p.version),
            CASE WHEN reconciler.minor_version(a.version) < p.minor THEN 'Upgrade the agent.' ELSE 'Upgrade the processes of `reconciler run`.' END
        FROM reconciler.agents a JOIN process p ON reconciler.minor_version(a.version) <> p.minor
    )
    SELECT 'agents', false, f.finding, f.remedy FROM found f
    UNION ALL
    SELECT 'agents', true, CASE WHEN count(*) = 1 THEN '1 agent reports' ELSE format('%s agents report', count(*)) END, NULL FROM reconciler.agents a
    HAVING count(*) > 0 AND NOT EXISTS (SELECT FROM found)
$$;

CREATE FUNCTION reconciler.doctor() RETURNS TABLE (check_name text, ok boolean, finding text, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM reconciler.doctor_schema() UNION ALL SELECT * FROM reconciler.doctor_capture() UNION ALL SELECT * FROM reconciler.doctor_index()
    UNION ALL SELECT * FROM reconciler.doctor_processes() UNION ALL SELECT * FROM reconciler.doctor_loops() UNION ALL SELECT * FROM reconciler.doctor_locks() UNION ALL SELECT * FROM reconciler.doctor_targets() UNION ALL SELECT * FROM reconciler.doctor_objects()
    UNION ALL SELECT * FROM reconciler.doctor_outbox() UNION ALL SELECT * FROM reconciler.doctor_notify() UNION ALL SELECT * FROM reconciler.doctor_transactions() UNION ALL SELECT * FROM reconciler.doctor_snapshots()
    UNION ALL SELECT * FROM reconciler.doctor_streams() UNION ALL SELECT * FROM reconciler.doctor_agents() UNION ALL SELECT * FROM reconciler.doctor_rights()
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.doctor_schema IS 'Internal: which version the schema has.';
COMMENT ON FUNCTION reconciler.doctor_capture IS 'Internal: triggers and views of resources.';
COMMENT ON FUNCTION reconciler.doctor_index IS 'Internal: indexes that syncs lack.';
COMMENT ON FUNCTION reconciler.doctor_notify IS 'Internal: NOTIFY queue and prepared transactions.';
COMMENT ON FUNCTION reconciler.doctor_transactions IS 'Internal: transactions that have been open for long.';
COMMENT ON FUNCTION reconciler.doctor_snapshots IS 'Internal: who keeps old versions of rows from being removed.';
COMMENT ON FUNCTION reconciler.doctor_outbox IS 'Internal: size of the outbox and who is far behind.';
COMMENT ON FUNCTION reconciler.doctor_processes IS 'Internal: leader, clock and connections.';
COMMENT ON FUNCTION reconciler.doctor_loops IS 'Internal: parts of processes that fail again and again, and processes that say nothing.';
COMMENT ON FUNCTION reconciler.doctor_locks IS 'Internal: locks that somebody holds and the product waits for.';
COMMENT ON FUNCTION reconciler.doctor_targets IS 'Internal: what is in the way of targets.';
COMMENT ON FUNCTION reconciler.doctor_objects IS 'Internal: blocked and failing objects.';
COMMENT ON FUNCTION reconciler.doctor_streams IS 'Internal: streams that cannot complete, what their clients report as failed, and clients that do not report.';
COMMENT ON FUNCTION reconciler.minor_version IS 'Internal: major and minor number of a version.';
COMMENT ON FUNCTION reconciler.doctor_agents IS 'Internal: agents that do not report, what is in their way, and two on one target.';
COMMENT ON FUNCTION reconciler.doctor_rights IS 'Internal: what the current role may do.';
COMMENT ON FUNCTION reconciler.doctor IS 'Looks at everything that is known to go wrong. ok false: read finding, do what remedy says.';

-- Functions are for the roles that grant() names, not for everybody.
SELECT reconciler.regrant();

-- +goose Down
DROP FUNCTION reconciler.doctor, reconciler.doctor_agents, reconciler.minor_version, reconciler.doctor_streams, reconciler.doctor_rights, reconciler.doctor_objects, reconciler.doctor_targets, reconciler.doctor_locks, reconciler.doctor_loops, reconciler.doctor_processes, reconciler.doctor_outbox,
    reconciler.doctor_snapshots, reconciler.doctor_transactions, reconciler.doctor_notify, reconciler.doctor_index, reconciler.doctor_capture, reconciler.doctor_schema;
