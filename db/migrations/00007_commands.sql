-- +goose Up

-- What a person orders in psql. Daemons are told on the channel reconciler_control and obey within a second.
-- These functions run with their owner's rights: an operator may call them, and needs (and has) no right to write the
-- tables by hand. They take the target's row first, as owners do (fence), so neither waits for the other in a circle.

-- +goose StatementBegin
-- named_target returns the target of this name, locked against owners, or says which names there are.
CREATE FUNCTION reconciler.named_target(name text) RETURNS reconciler.targets
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t reconciler.targets;
BEGIN
    IF named_target.name IS NULL THEN
        RAISE EXCEPTION 'target is NULL: name a target' USING ERRCODE = 'null_value_not_allowed', HINT = reconciler.target_names();
    END IF;
    SELECT * INTO t FROM reconciler.targets x WHERE x.name = named_target.name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no target is named %', quote_literal(named_target.name) USING ERRCODE = 'undefined_object', HINT = reconciler.target_names();
    END IF;
    RETURN t;
END
$$;

CREATE FUNCTION reconciler.target_names() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce('Targets: ' || string_agg(name, ', ' ORDER BY name), 'No target is known yet: `reconciler run` writes down those of its config when it starts.')
    FROM reconciler.targets
$$;

-- named_resource returns the id of the resource of this name (NULL for NULL), or says which names there are.
CREATE FUNCTION reconciler.named_resource(name text) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_id integer;
BEGIN
    IF named_resource.name IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT r.id INTO found_id FROM reconciler.resources r WHERE r.name = named_resource.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no resource is named %', quote_literal(named_resource.name) USING ERRCODE = 'undefined_object', HINT = reconciler.resource_names();
    END IF;
    RETURN found_id;
END
$$;

CREATE FUNCTION reconciler.resource_names() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce('Resources: ' || string_agg(name, ', ' ORDER BY name), 'Nothing is tracked.') FROM reconciler.resources
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.named_target IS 'Internal: a target by name, locked; the error names those that there are.';
COMMENT ON FUNCTION reconciler.target_names IS 'Internal: the targets, for hints.';
COMMENT ON FUNCTION reconciler.named_resource IS 'Internal: a resource by name; the error names those that there are.';
COMMENT ON FUNCTION reconciler.resource_names IS 'Internal: the resources, for hints.';

-- +goose StatementBegin
CREATE FUNCTION reconciler.resync(target text, resource text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted_resource integer := reconciler.named_resource(resync.resource);
    everywhere boolean := coalesce(resync.target, '*') = '*';
    t reconciler.targets;
    asked text[] := '{}';
BEGIN
    IF NOT everywhere THEN
        t := reconciler.named_target(resync.target);
        IF NOT t.configured THEN
            RAISE EXCEPTION 'no running process has target % in its config, so nobody can sync it', quote_literal(t.name) USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Put it into the config of a process, or forget it: ' || reconciler.quote_call('release', ARRAY[t.name]);
        END IF;
    END IF;
    PERFORM reconciler.raise_sequences();
    FOR t IN SELECT * FROM reconciler.targets x WHERE x.configured AND (everywhere OR x.name = resync.target) ORDER BY x.name LOOP
        -- A request that waits already, such as that of the interval, becomes this one. Repairing includes reporting.
        INSERT INTO reconciler.sync_runs AS s (target_id, resource_id, reason, mode, verify) VALUES (t.id, wanted_resource, 'resync', 'repair', true)
        ON CONFLICT (target_id, coalesce(resource_id, 0)) WHERE state = 'requested'
        DO UPDATE SET reason = 'resync', mode = 'repair', verify = true, requested_by = session_user, not_before = NULL;
        PERFORM reconciler.order_stream(t.id, 'resync');
        asked := asked || t.name;
    END LOOP;
    IF asked = '{}' THEN
        RAISE EXCEPTION 'no running process has a target in its config, so there is nothing to sync' USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = reconciler.target_names();
    END IF;
    PERFORM pg_notify('reconciler_control', '');
    RETURN format('sync of %s%s requested', array_to_string(asked, ', '), ', resource ' || resync.resource || ',');
END
$$;

-- retry has objects tried again now: those that failed, are blocked, or wait for their next attempt.
CREATE FUNCTION reconciler.retry(target text, resource text DEFAULT NULL, key text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t reconciler.targets := reconciler.named_target(retry.target);
    wanted_resource integer := reconciler.named_resource(retry.resource);
    is_state reconciler.object_state;
    agent text;
    n integer;
BEGIN
    IF retry.key IS NOT NULL THEN
        IF retry.resource IS NULL THEN
            RAISE EXCEPTION 'key % is given without a resource', quote_literal(retry.key) USING ERRCODE = 'invalid_parameter_value', HINT = reconciler.resource_names();
        END IF;
        SELECT l.state INTO is_state FROM reconciler.ledger l WHERE l.target_id = t.id AND l.resource_id = wanted_resource AND l.key = retry.key;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'target % has no object % of resource %', t.name, quote_literal(retry.key), retry.resource USING ERRCODE = 'no_data_found',
                HINT = 'What is known of it: ' || reconciler.quote_call('explain', ARRAY[t.name, retry.resource, retry.key]);
        END IF;
    END IF;
    UPDATE reconciler.ledger l SET state = 'pending', attempts = 0, failed_hash = NULL, generation = l.generation + 1, next_attempt_at = clock_timestamp()
    WHERE l.target_id = t.id AND l.state IN ('pending', 'failing', 'blocked')
      AND (wanted_resource IS NULL OR l.resource_id = wanted_resource) AND (retry.key IS NULL OR l.key = retry.key);
    GET DIAGNOSTICS n = ROW_COUNT;
    agent := reconciler.order_stream(t.id, 'retry');
    IF agent IS NOT NULL THEN
        RAISE NOTICE 'agent % of % is asked to retry what has failed there', agent, t.name;
    ELSIF is_state IN ('applied', 'held') THEN
        RAISE NOTICE 'object % is %: there is nothing to retry', quote_literal(retry.key), is_state;
    END IF;
    PERFORM pg_notify('reconciler_control', '');
    RETURN n;
END
$$;

CREATE FUNCTION reconciler.pause(target text, reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t reconciler.targets := reconciler.named_target(pause.target);
    already boolean := t.paused_at IS NOT NULL;
BEGIN
    UPDATE reconciler.targets x SET paused_at = coalesce(x.paused_at, clock_timestamp()), paused_by = coalesce(x.paused_by, session_user),
        paused_reason = coalesce(pause.reason, x.paused_reason)
    WHERE x.id = t.id RETURNING * INTO t;
    PERFORM reconciler.order_stream(t.id, 'pause');
    PERFORM pg_notify('reconciler_control', '');
    RETURN CASE WHEN already THEN format('%s is already %s', t.name, reconciler.pause_text(t))
           ELSE format('%s is paused, until %s', t.name, reconciler.quote_call('resume', ARRAY[t.name])) END;
END
$$;

CREATE FUNCTION reconciler.resume(target text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t reconciler.targets := reconciler.named_target(resume.target);
    n bigint;
BEGIN
    UPDATE reconciler.targets x SET paused_at = NULL, paused_by = NULL, paused_reason = NULL WHERE x.id = t.id;
    UPDATE reconciler.ledger l SET state = 'pending', held_by = NULL, next_attempt_at = clock_timestamp()
    WHERE l.target_id = t.id AND l.state = 'held' AND l.held_by = 'pause';
    GET DIAGNOSTICS n = ROW_COUNT;
    PERFORM reconciler.order_stream(t.id, 'pause');
    PERFORM pg_notify('reconciler_control', '');
    RETURN CASE WHEN t.paused_at IS NULL AND n = 0 THEN format('%s was not paused', t.name) ELSE format('%s goes on; %s due', t.name, reconciler.counted(n, 'held object')) END;
END
$$;

-- approve lets the deletes pass that the guard holds now. Later ones are counted anew.
CREATE FUNCTION reconciler.acknowledge(target text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t reconciler.targets := reconciler.named_target(acknowledge.target);
BEGIN
    UPDATE reconciler.targets x SET lost_at = NULL WHERE x.id = t.id AND x.lost_at IS NOT NULL;
    DELETE FROM reconciler.left_places p WHERE p.target_id = t.id;
    RETURN CASE WHEN t.lost_at IS NULL AND NOT FOUND THEN format('there was nothing to acknowledge of %s', t.name)
        ELSE format('%s was compared with the rows', t.name) END;
END
$$;

CREATE FUNCTION reconciler.approve(target text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t reconciler.targets := reconciler.named_target(approve.target);
    agent text;
    n bigint;
BEGIN
    UPDATE reconciler.ledger l SET state = 'pending', held_by = NULL, approved = true, generation = l.generation + 1, next_attempt_at = clock_timestamp()
    WHERE l.target_id = t.id AND l.state = 'held' AND l.held_by = 'guard';
    GET DIAGNOSTICS n = ROW_COUNT;
    UPDATE reconciler.targets x SET guard_deletes = NULL, guard_protected = NULL, guard_objects = NULL, guard_since = NULL WHERE x.id = t.id;
    agent := reconciler.order_stream(t.id, 'approve');
    PERFORM pg_notify('reconciler_control', '');
    RETURN CASE WHEN n = 0 THEN format('the guard holds nothing of %s', t.name)
           WHEN t.paused_at IS NOT NULL THEN format('%s of %s approved; it is %s: they wait for %s', reconciler.counted(n, 'delete'), t.name, reconciler.pause_text(t), reconciler.quote_call('resume', ARRAY[t.name]))
           ELSE format('%s of %s approved', reconciler.counted(n, 'delete'), t.name) END
        || coalesce('; agent ' || agent || ' is asked to approve what its own guard holds', '');
END
$$;

-- release gives a target up. objects => 'keep' forgets one that is in no config; 'delete' empties one first.
CREATE FUNCTION reconciler.release(target text, objects text DEFAULT 'keep') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t reconciler.targets := reconciler.named_target(release.target);
    n bigint;
BEGIN
    IF release.objects IS NULL OR release.objects NOT IN ('keep', 'delete') THEN
        RAISE EXCEPTION 'objects must be ''keep'' (the target keeps them) or ''delete'' (they are deleted there), not %', quote_nullable(release.objects)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_notify('reconciler_control', '');
    IF release.objects = 'delete' THEN
        IF NOT t.configured THEN
            RAISE EXCEPTION 'no running process has target % in its config, so nobody can delete its objects there', quote_literal(t.name)
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Put it into the config of a process, or leave its objects there: ' || reconciler.quote_call('release', ARRAY[t.name]);
        END IF;
        UPDATE reconciler.targets x SET draining = true WHERE x.id = t.id;
        PERFORM reconciler.resync(t.name); -- it deletes them
        SELECT count(*) INTO n FROM reconciler.ledger l WHERE l.target_id = t.id;
        RETURN format('%s of %s to be deleted there%s', reconciler.counted(n, 'object'), t.name,
            (SELECT format('; of them %s protected: these wait for %s', count(*), reconciler.quote_call('approve', ARRAY[t.name]))
             FROM reconciler.ledger l WHERE l.target_id = t.id AND l.protected HAVING count(*) > 0));
    END IF;
    IF t.configured AND EXISTS (SELECT FROM reconciler.instances i WHERE t.name = ANY (i.targets) AND reconciler.lease_lives(i.id, '15 seconds')) THEN
        RAISE EXCEPTION 'target % is in the config of a running process, which would apply its objects again', quote_literal(t.name)
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Take it out of the config and restart first; or have its objects deleted there: ' || reconciler.quote_call('release', ARRAY[t.name, 'delete']);
    END IF;
    PERFORM reconciler.raise_sequences(); -- for the log of its applies
    DELETE FROM reconciler.first_calls c WHERE c.target_id = t.id;
    DELETE FROM reconciler.ledger l WHERE l.target_id = t.id;
    GET DIAGNOSTICS n = ROW_COUNT;
    DELETE FROM reconciler.targets x WHERE x.id = t.id;
    DELETE FROM reconciler.cursors c WHERE c.consumer = t.id;
    UPDATE reconciler.configs c SET targets = array_remove(c.targets, t.name::text) WHERE t.name = ANY (c.targets);
    RETURN format('target %s is forgotten, with %s that it keeps', t.name, reconciler.counted(n, 'object'))
        || CASE WHEN t.configured THEN '; a process that starts with it in its config begins anew there' ELSE '' END;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.resync IS 'Has a target (NULL or ''*'': every one in a config) synced in full, and every object in it verified. Asking twice is asking once.';
COMMENT ON FUNCTION reconciler.retry IS 'Has failing, blocked and waiting objects tried again now: one, all of a resource, or all of a target. Returns how many.';
COMMENT ON FUNCTION reconciler.pause IS 'Stops all calls on a target. What changes meanwhile is noticed, and applied after resume().';
COMMENT ON FUNCTION reconciler.resume IS 'Ends pause().';
COMMENT ON FUNCTION reconciler.acknowledge IS 'Says that somebody has compared a target that cannot list with the rows, after a restore or a failover that lost commits.';
COMMENT ON FUNCTION reconciler.approve IS 'Lets the deletes pass that the guard of a target holds now.';
COMMENT ON FUNCTION reconciler.release IS 'Gives a target up. objects => ''keep'' forgets one that is in no running process''s config; ''delete'' has its objects deleted there.';

-- +goose Down
DROP FUNCTION reconciler.release, reconciler.acknowledge, reconciler.approve, reconciler.resume, reconciler.pause, reconciler.retry, reconciler.resync,
    reconciler.resource_names, reconciler.named_resource, reconciler.target_names, reconciler.named_target;
