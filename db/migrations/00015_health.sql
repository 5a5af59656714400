-- +goose Up

-- Health of objects: what owners record, what people ask for.

-- +goose StatementBegin
-- record_object_health records what a driver has answered about the health of objects, and what follows for an
-- operation, or for the target (operation 0): unhealthy names the first object that is not healthy. Else all are
-- healthy if began is not null, and else the answer is still to come. It returns false, and records nothing, while
-- another transaction holds the operation's row.
CREATE FUNCTION reconciler.record_object_health(
    target_id integer, owner uuid, term bigint, operation_id bigint,
    since timestamptz, asked_at timestamptz, began timestamptz,
    unhealthy text, resource_ids integer[], keys text[], states text[], reasons text[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    answered timestamptz := CASE WHEN record_object_health.unhealthy IS NULL THEN began ELSE asked_at END;
BEGIN
    PERFORM reconciler.fence(record_object_health.target_id, record_object_health.owner, record_object_health.term);
    IF operation_id = 0 THEN
        UPDATE reconciler.targets t SET health_asked_at = answered, unhealthy = record_object_health.unhealthy
        WHERE t.id = record_object_health.target_id
          AND (t.health_asked_at, t.unhealthy) IS DISTINCT FROM (answered, record_object_health.unhealthy);
    ELSE
        PERFORM FROM reconciler.operations o WHERE o.id = operation_id FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        UPDATE reconciler.operations o
        SET health_term = record_object_health.term, health_asked_at = answered,
            unhealthy = record_object_health.unhealthy
        WHERE o.id = operation_id AND (o.health_term, o.health_asked_at, o.unhealthy)
            IS DISTINCT FROM (record_object_health.term, answered, record_object_health.unhealthy);
        IF record_object_health.unhealthy IS NULL AND began IS NOT NULL THEN
            PERFORM pg_notify('reconciler_turn', '');
        END IF;
    END IF;
    DELETE FROM reconciler.object_health h USING unnest(resource_ids, keys, states) AS n(resource_id, key, state)
    WHERE h.target_id = record_object_health.target_id AND h.resource_id = n.resource_id AND h.key = n.key
      AND n.state = 'healthy';
    INSERT INTO reconciler.object_health AS h (target_id, resource_id, key, state, reason, since, asked_at)
    SELECT l.target_id, l.resource_id, l.key, n.state, n.reason,
        record_object_health.asked_at, record_object_health.asked_at
    FROM unnest(resource_ids, keys, states, reasons) AS n(resource_id, key, state, reason)
    CROSS JOIN LATERAL (SELECT x.target_id, x.resource_id, x.key FROM reconciler.ledger x
        WHERE x.target_id = record_object_health.target_id AND x.resource_id = n.resource_id AND x.key = n.key
        LIMIT 1 FOR KEY SHARE) AS l
    WHERE n.state <> 'healthy'
    ON CONFLICT ON CONSTRAINT object_health_pkey DO UPDATE
    SET state = excluded.state, reason = excluded.reason, asked_at = excluded.asked_at,
        since = CASE WHEN h.state = excluded.state THEN h.since ELSE excluded.since END
    WHERE (h.state, h.reason) IS DISTINCT FROM (excluded.state, excluded.reason)
       OR h.asked_at < record_object_health.since;
    RETURN true;
END
$$;

-- ask_health has the owners of targets ask for their health from now on, until the ask expires. Owners
-- see it when its transaction has ended.
CREATE FUNCTION reconciler.ask_health(target text DEFAULT NULL, lasting interval DEFAULT '1 minute') RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    asked_at timestamptz := clock_timestamp();
BEGIN
    IF ask_health.lasting IS NULL OR ask_health.lasting NOT BETWEEN '1 second' AND '1 day' THEN
        RAISE EXCEPTION 'ask_health() asks for 1 second to 1 day, not for %', coalesce(ask_health.lasting::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF ask_health.target IS NOT NULL
        AND NOT EXISTS (SELECT FROM reconciler.targets t WHERE t.name = ask_health.target) THEN
        RAISE EXCEPTION 'no target is named %', quote_literal(ask_health.target)
            USING ERRCODE = 'undefined_object', HINT = reconciler.target_names();
    END IF;
    DELETE FROM reconciler.health_asks k WHERE k.ctid = ANY (ARRAY(
        SELECT x.ctid FROM reconciler.health_asks x WHERE x.until <= asked_at FOR UPDATE SKIP LOCKED));
    INSERT INTO reconciler.health_asks (target_id, at, until)
    SELECT t.id, asked_at, asked_at + ask_health.lasting FROM reconciler.targets t
    WHERE t.configured AND (ask_health.target IS NULL OR t.name = ask_health.target)
    ORDER BY t.id;
    PERFORM pg_notify('reconciler_turn', '');
    RETURN asked_at;
END
$$;

-- not_healthy lists what is not healthy by answers after an ask_health(), at most 100 rows. A target whose driver
-- reports no health is healthy when everything is applied.
CREATE FUNCTION reconciler.not_healthy(only_target text, since timestamptz)
RETURNS TABLE (target text, resource text, key text, state text, reason text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH t AS MATERIALIZED (
        SELECT t, t.id, t.name, k.at, t.health_asked_at >= k.at AND t.unhealthy IS NOT NULL AS answered
        FROM reconciler.targets t
        CROSS JOIN LATERAL (SELECT coalesce(not_healthy.since, reconciler.health_ask(t.id)) AS at) AS k
        WHERE t.configured AND t.reports_health AND (only_target IS NULL OR t.name = only_target)
          AND NOT coalesce(t.health_asked_at >= k.at AND t.unhealthy IS NULL, false)
    ), objects AS MATERIALIZED (
        SELECT t.id, t.name AS target, r.name AS resource, h.key, h.state, h.reason
        FROM t
        CROSS JOIN LATERAL (
            SELECT x.* FROM reconciler.object_health x WHERE x.target_id = t.id AND x.asked_at >= t.at
            ORDER BY x.resource_id, x.key LIMIT 100) AS h
        JOIN reconciler.resources r ON r.id = h.resource_id
    )
    SELECT f.target, f.resource, f.key, f.state, f.reason FROM (
        SELECT o.target, o.resource, o.key, o.state, o.reason FROM objects o
        UNION ALL
        SELECT t.name, NULL, NULL, CASE WHEN t.answered THEN 'unhealthy' ELSE 'unasked' END,
            CASE WHEN t.answered THEN (t.t).unhealthy
                ELSE concat_ws('; ', 'its health is being asked', reconciler.explain_target(t.t, t.name)) END
        FROM t WHERE NOT EXISTS (SELECT FROM objects o WHERE o.id = t.id)
    ) AS f
    ORDER BY f.target, f.resource, f.key LIMIT 100
$$;

-- wait_for_health is wait_healthy(), whose columns have the names of its arguments, which PL/pgSQL does not take.
CREATE FUNCTION reconciler.wait_for_health(timeout interval, only_target text, since timestamptz)
RETURNS TABLE (target text, resource text, key text, state text, reason text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    begun    timestamptz := clock_timestamp();
    deadline timestamptz := begun + coalesce(timeout, interval '30 seconds');
    left_    jsonb;
BEGIN
    PERFORM reconciler.check_wait(only_target);
    IF since IS NULL AND NOT EXISTS (SELECT FROM reconciler.targets t
        WHERE t.configured AND (only_target IS NULL OR t.name = only_target)
          AND reconciler.health_ask(t.id) IS NOT NULL) THEN
        RAISE EXCEPTION 'no owner was asked for the health of its target'
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = format('First: SELECT reconciler.ask_health(%s);', quote_literal(only_target));
    END IF;
    LOOP
        SELECT jsonb_agg(to_jsonb(n)) INTO left_ FROM reconciler.not_healthy(only_target, since) AS n;
        EXIT WHEN left_ IS NULL OR clock_timestamp() >= deadline;
        PERFORM pg_sleep(least(0.2, greatest(0.02, extract(epoch FROM clock_timestamp() - begun) / 10),
            extract(epoch FROM deadline - clock_timestamp())));
    END LOOP;
    RETURN QUERY SELECT n.target, n.resource, n.key, n.state, n.reason
    FROM jsonb_to_recordset(coalesce(left_, '[]')) AS n(target text, resource text, key text, state text, reason text);
END
$$;

CREATE FUNCTION reconciler.wait_healthy(
    timeout interval DEFAULT '30 seconds', target text DEFAULT NULL, since timestamptz DEFAULT NULL)
RETURNS TABLE (target text, resource text, key text, state text, reason text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM reconciler.wait_for_health($1, $2, $3)
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.record_object_health IS 'Internal: an owner records the health of objects.';
COMMENT ON FUNCTION reconciler.ask_health IS 'Has the owners of targets ask whether what they applied is healthy, '
    'for a while or until it is: for wait_healthy(), and the view reconciler.health. '
    'Returns since when answers count.';
COMMENT ON FUNCTION reconciler.not_healthy IS 'Internal: what is not healthy by the answers since ask_health().';
COMMENT ON FUNCTION reconciler.wait_for_health IS 'Internal: wait_healthy().';
COMMENT ON FUNCTION reconciler.wait_healthy IS 'Returns without a row as soon as everything is healthy by answers '
    'since ask_health(), everywhere or in one target. At the timeout: what is not and why, at most 100 rows.';

CREATE VIEW reconciler.health AS
SELECT t.name AS target, r.name AS resource, h.key, h.state, h.reason, h.since, h.asked_at
FROM reconciler.object_health h
JOIN reconciler.targets t ON t.id = h.target_id
JOIN reconciler.resources r ON r.id = h.resource_id
UNION ALL
SELECT t.name, NULL, NULL, 'unhealthy', t.unhealthy, NULL, t.health_asked_at
FROM reconciler.targets t WHERE t.unhealthy IS NOT NULL AND NOT t.reports_objects
UNION ALL
SELECT t.name, r.name, o.key, CASE o.state WHEN 'progressing' THEN 'progressing' ELSE 'unhealthy' END,
    coalesce(o.message, 'the client gave no reason'), o.observed_at,
    greatest(o.observed_at, p.inventory_at)
FROM reconciler.observations o
JOIN reconciler.targets t ON t.id = o.target_id
JOIN reconciler.resources r ON r.id = o.resource_id
LEFT JOIN reconciler.reports p ON p.target_id = o.target_id WHERE NOT o.healthy;
COMMENT ON VIEW reconciler.health IS 'What was not healthy by the last answer. Owners ask while an apply waits for '
    'that, or after ask_health(); about 100 objects of a target at a time. Clients of streams report by themselves.';
COMMENT ON COLUMN reconciler.health.resource IS 'NULL: the driver reports the health of the target as a whole.';
COMMENT ON COLUMN reconciler.health.state IS 'progressing (may become healthy by itself), unhealthy (it has failed) '
    'or unknown (the driver could not say).';
COMMENT ON COLUMN reconciler.health.since IS 'Since when it has been in this state, as far as it was asked.';
COMMENT ON COLUMN reconciler.health.asked_at IS
    'When the answer came. It is not written again while answers say the same.';

SELECT reconciler.regrant();

-- +goose Down
DROP VIEW reconciler.health;
DROP FUNCTION reconciler.wait_healthy, reconciler.wait_for_health, reconciler.not_healthy, reconciler.ask_health,
    reconciler.record_object_health;
