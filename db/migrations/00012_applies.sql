-- +goose Up

-- Applies: the changes of one transaction, followed as one rollout. How it fits together is in docs/applies.md.
-- Locks are taken in one order everywhere: lease or target, apply, operation, task, ledger; several applies by id.

CREATE TABLE reconciler.applies (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    epoch         integer NOT NULL,
    xid           xid8 NOT NULL,
    xids          xid8[] NOT NULL,
    title         text NOT NULL CHECK (length(title) BETWEEN 1 AND 200),
    on_failure    text NOT NULL CHECK (on_failure IN ('halt', 'continue', 'pause')),
    strategy      text NOT NULL CHECK (strategy IN ('rolling', 'parallel', 'waves')),
    waves         jsonb CHECK (jsonb_typeof(waves) = 'array'),
    soak          interval NOT NULL CHECK (soak BETWEEN '0' AND '1 year'),
    attempts      integer NOT NULL CHECK (attempts BETWEEN 1 AND 1000),
    labels        jsonb NOT NULL CHECK (jsonb_typeof(labels) = 'object'),
    automatic     boolean NOT NULL DEFAULT false,
    reapply       boolean NOT NULL DEFAULT false,
    state         text NOT NULL DEFAULT 'pending' CHECK (state IN (
        'pending', 'running', 'degraded', 'paused', 'stopping', 'stopped', 'completed', 'superseded', 'failed', 'cancelled')),
    wish          text NOT NULL DEFAULT 'run' CHECK (wish IN ('run', 'pause', 'stop', 'cancel')),
    released      boolean NOT NULL DEFAULT false,
    version       bigint NOT NULL DEFAULT 1,
    created_by    text NOT NULL DEFAULT session_user,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    opened_xid    xid8 NOT NULL DEFAULT '0',
    opened_seq    bigint NOT NULL DEFAULT 0,
    opened_at     timestamptz,
    started_at    timestamptz,
    resumed_at    timestamptz,
    completed_at  timestamptz,
    error_message text,
    UNIQUE (epoch, xid),
    CHECK (strategy <> 'waves' OR waves IS NOT NULL),
    CHECK ((state IN ('completed', 'superseded', 'failed', 'cancelled')) = (completed_at IS NOT NULL)),
    CHECK (opened_at IS NOT NULL OR state = 'pending')
);
-- Owners ask with each read of rows whether there is one whose objects are not known yet: an index that is empty then.
-- By transaction, as operations_not_done is: a look begins where the one before it ended. Before that lies what is left of all
-- that were opened since somebody's transaction began.
CREATE INDEX applies_unopened ON reconciler.applies (xid) WHERE opened_at IS NULL;
-- The leader counts those that have not ended, for metrics, and people list them: few among all that are kept.
CREATE INDEX applies_under_way ON reconciler.applies (id) WHERE completed_at IS NULL;
CREATE INDEX applies_ended ON reconciler.applies (completed_at) WHERE completed_at IS NOT NULL;
COMMENT ON TABLE reconciler.applies IS 'Change sets that people follow as one rollout: the changes of one transaction; see the view reconciler.apply_status.';
COMMENT ON COLUMN reconciler.applies.xid IS 'The transaction whose changes it is; outbox rows have the same. Ids may come again after a restore: then the epoch differs.';
COMMENT ON COLUMN reconciler.applies.xids IS 'xid, and the transactions in which the leader expanded its changes of base tables.';
COMMENT ON COLUMN reconciler.applies.attempts IS 'How often an object may fail in a target before its task has failed.';
COMMENT ON COLUMN reconciler.applies.automatic IS 'A trigger began it, because of set_applies().';
COMMENT ON COLUMN reconciler.applies.reapply IS 'Its objects are applied where nothing has changed, too: it is a begin_resync().';
COMMENT ON COLUMN reconciler.applies.state IS 'Derived from all its operations and from wish, by derive_apply(), and written by refresh_apply() alone.';
COMMENT ON COLUMN reconciler.applies.wish IS 'What people want of it.';
COMMENT ON COLUMN reconciler.applies.released IS 'With on_failure ''pause'': it goes on past failures.';
COMMENT ON COLUMN reconciler.applies.version IS 'Grows with each change of state and each command; for callers that compare and set.';
COMMENT ON COLUMN reconciler.applies.opened_at IS 'When its operations and tasks were written down. Until then nobody knows which objects are its.';
COMMENT ON COLUMN reconciler.applies.resumed_at IS 'When a person last had it go on: what targets said of their health before that does not count. NULL: never.';
COMMENT ON COLUMN reconciler.applies.opened_seq IS 'With opened_xid: up to here its outbox rows have become tasks.';

CREATE TABLE reconciler.operations (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    apply_id     bigint NOT NULL REFERENCES reconciler.applies ON DELETE CASCADE,
    target_id    integer REFERENCES reconciler.targets ON DELETE SET NULL,
    target       text COLLATE "C" NOT NULL,
    xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
    ordinal      integer NOT NULL DEFAULT 0 CHECK (ordinal >= 0),
    state        text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running', 'stopping', 'stopped',
        'completed', 'superseded', 'failed', 'halted', 'cancelled')),
    is_open      boolean NOT NULL DEFAULT false,
    reapply      boolean NOT NULL DEFAULT false,
    done         boolean NOT NULL DEFAULT false,
    unproven     boolean NOT NULL DEFAULT false,
    term         bigint,
    claims       integer NOT NULL DEFAULT 0 CHECK (claims >= 0),
    budget       integer NOT NULL CHECK (budget > 0),
    tasks        integer NOT NULL DEFAULT 0,
    completed    integer NOT NULL DEFAULT 0 CHECK (completed >= 0),
    failed       integer NOT NULL DEFAULT 0 CHECK (failed >= 0),
    superseded   integer NOT NULL DEFAULT 0 CHECK (superseded >= 0),
    cancelled    integer NOT NULL DEFAULT 0 CHECK (cancelled >= 0),
    error        text,
    started_at   timestamptz,
    completed_at timestamptz,
    health_term     bigint,
    health_asked_at timestamptz,
    unhealthy       text,
    UNIQUE (apply_id, target),
    CHECK (health_asked_at IS NOT NULL OR unhealthy IS NULL),
    CHECK (completed + failed + superseded + cancelled <= tasks),
    CHECK (state <> 'running' OR is_open),
    CHECK (state NOT IN ('pending', 'stopping', 'stopped') OR NOT is_open),
    CHECK (state NOT IN ('completed', 'superseded', 'failed') OR completed + failed + superseded + cancelled = tasks),
    CHECK (state <> 'completed' OR failed = 0 AND superseded = 0 AND NOT unproven),
    CHECK (state <> 'superseded' OR failed = 0 AND superseded > 0),
    CHECK (state <> 'failed' OR failed > 0),
    CHECK ((state IN ('completed', 'superseded', 'failed', 'halted', 'cancelled')) = (completed_at IS NOT NULL)),
    CHECK (NOT done OR completed_at IS NOT NULL)
);
CREATE INDEX operations_order ON reconciler.operations (apply_id, ordinal, target);
-- Owners ask with each read of rows whether an apply has to do with their target: those that have not are not in it.
CREATE INDEX operations_not_done ON reconciler.operations (target_id, xid) WHERE NOT done;
COMMENT ON TABLE reconciler.operations IS 'The part of an apply in one target; see the view reconciler.apply_targets.';
COMMENT ON COLUMN reconciler.operations.xid IS 'The transaction that made it, or that had it begin again when it was done.';
COMMENT ON COLUMN reconciler.operations.target IS 'Name of the target; stays when the target is forgotten.';
COMMENT ON COLUMN reconciler.operations.ordinal IS 'Place in the order of the rollout; those of one wave have the same.';
COMMENT ON COLUMN reconciler.operations.state IS 'pending (its gate is closed), running, stopping (calls are still under way), stopped; settled: completed, superseded (newer changes took objects of it), failed, halted (never started, another one failed), cancelled.';
COMMENT ON COLUMN reconciler.operations.is_open IS 'The gate: while it is closed, objects that a task of it governs keep what they have.';
COMMENT ON COLUMN reconciler.operations.done IS 'No task of it governs an object any more.';
COMMENT ON COLUMN reconciler.operations.unproven IS
    'An object of it has failed and has not been applied as it was then. For on_failure that is a failure.';
COMMENT ON COLUMN reconciler.operations.term IS 'Term of the target''s owner that works on it; NULL while it is open: the owner looks at all of its objects again.';
COMMENT ON COLUMN reconciler.operations.claims IS 'How often it was started: once, and once more after each start() and retry(). A crash does not count.';
COMMENT ON COLUMN reconciler.operations.health_term IS 'Term of the owner that asked about the health of its objects; what a former owner was told does not count.';
COMMENT ON COLUMN reconciler.operations.health_asked_at IS 'Since when that owner has asked for the newest answer. NULL: the answer is still to come.';
COMMENT ON COLUMN reconciler.operations.unhealthy IS 'The first of its objects that is not healthy by that answer, and why. NULL: all are.';
COMMENT ON COLUMN reconciler.operations.budget IS 'How often each of its objects may fail.';

CREATE TABLE reconciler.tasks (
    operation_id bigint NOT NULL REFERENCES reconciler.operations ON DELETE CASCADE,
    target_id    integer NOT NULL,
    resource_id  integer NOT NULL,
    key          text COLLATE "C" NOT NULL,
    seq          bigint NOT NULL,
    revision     bigint NOT NULL,
    state        text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'completed', 'failed', 'superseded', 'cancelled')),
    governs      boolean NOT NULL DEFAULT true,
    attempts     integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    tried        bytea,
    error        text,
    settled_at   timestamptz,
    PRIMARY KEY (operation_id, resource_id, key),
    CHECK ((state = 'pending') = (settled_at IS NULL)),
    CHECK (state <> 'pending' OR governs),
    CHECK (NOT governs OR state IN ('pending', 'failed', 'cancelled'))
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX tasks_governing ON reconciler.tasks (target_id, resource_id, key) WHERE governs;
CREATE INDEX tasks_retrying ON reconciler.tasks (operation_id) WHERE state = 'pending' AND attempts > 0;
COMMENT ON TABLE reconciler.tasks IS 'The part of an apply in one object; see the view reconciler.apply_tasks.';
COMMENT ON COLUMN reconciler.tasks.seq IS 'Highest seq of its outbox rows: of two applies of one object the later one has the higher.';
COMMENT ON COLUMN reconciler.tasks.revision IS 'Revision that the change belongs to.';
COMMENT ON COLUMN reconciler.tasks.governs IS 'The newest task of its object that this has not followed: the gate of its operation holds the object. At most one for an object.';
COMMENT ON COLUMN reconciler.tasks.tried IS
    'Hash of the spec that it failed with first; empty for a delete; NULL: it has not, or no call is ever made for it.';

CREATE TABLE reconciler.apply_events (
    id       bigint PRIMARY KEY,
    apply_id bigint NOT NULL REFERENCES reconciler.applies ON DELETE CASCADE,
    title    text NOT NULL,
    state    text NOT NULL CHECK (state IN ('completed', 'superseded', 'failed', 'cancelled')),
    error    text,
    labels   jsonb NOT NULL,
    begun_by text NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE reconciler.apply_events IS 'One row for each end of an apply, written in the transaction that ended it; it goes with its apply. Track it, and a target is called for each: a hook.';
COMMENT ON COLUMN reconciler.apply_events.id IS 'The row of apply_log.';
CREATE INDEX apply_events_apply ON reconciler.apply_events (apply_id);

CREATE TABLE reconciler.apply_log (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    apply_id bigint NOT NULL REFERENCES reconciler.applies ON DELETE CASCADE,
    version  bigint NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    by       text NOT NULL DEFAULT session_user,
    what     text NOT NULL CHECK (what IN ('open', 'state', 'pause', 'stop', 'start', 'release', 'cancel', 'retry', 'target')),
    target   text,
    why      text,
    was      text,
    state    text,
    UNIQUE (apply_id, version),
    CHECK ((what = 'state') = (was IS NOT NULL AND state IS NOT NULL))
);
COMMENT ON TABLE reconciler.apply_log IS 'What happened to applies: who, when, what and why. Rows are only added.';
COMMENT ON COLUMN reconciler.apply_log.what IS 'A command; open (its objects were written down); target (a target was forgotten); or state: the state changed.';
COMMENT ON COLUMN reconciler.apply_log.why IS 'The reason that a person gave; for a state its error.';

-- +goose StatementBegin
CREATE FUNCTION reconciler.keep_log() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- With its apply a row may go: that comes from the foreign key, one trigger deeper.
    IF TG_OP = 'DELETE' AND pg_trigger_depth() > 1 THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'rows of reconciler.apply_log are only added' USING ERRCODE = 'object_not_in_prerequisite_state';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER keep_log BEFORE UPDATE OR DELETE ON reconciler.apply_log FOR EACH ROW EXECUTE FUNCTION reconciler.keep_log();

-- The place of a rollout: the first operation in order that is not passed, and what there is to know of those before it.
CREATE TYPE reconciler.apply_front AS (
    ordinal      integer,
    target       text,
    state        text,
    failed       text,
    soaked_until timestamptz,
    unhealthy    text,
    unasked      text
);
COMMENT ON TYPE reconciler.apply_front IS 'Internal: where a rollout stands.';

-- +goose StatementBegin
-- begin_apply makes the changes of the calling transaction one apply, also those before the call. It locks nothing that
-- another transaction could want, and does nothing for each changed row: the leader finds them by the transaction's id.
-- The outbox row of no resource makes the leader look, also when nothing tracked has changed.
CREATE FUNCTION reconciler.begin_apply(title text, on_failure text DEFAULT 'halt', strategy text DEFAULT 'rolling', waves jsonb DEFAULT NULL,
    soak interval DEFAULT '0', attempts integer DEFAULT 10, labels jsonb DEFAULT '{}') RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here integer := coalesce((SELECT s.epoch FROM reconciler.installation s), 0);
    own  record;
    n    bigint;
BEGIN
    SELECT a.id, a.automatic, a.created_at INTO own
    FROM reconciler.applies a WHERE a.epoch = here AND a.xid = pg_current_xact_id();
    -- Of a transaction with this id in the server that the database was moved from, and no leader has noticed the move
    -- yet. The hour is for clocks that are set back.
    IF own.created_at < transaction_timestamp() - interval '1 hour' THEN
        RAISE EXCEPTION 'apply % has the id of this transaction, from the server where the database was before', own.id
            USING ERRCODE = 'object_in_use',
                HINT = 'Try again in another transaction, or after a reconciler process has started.';
    ELSIF NOT own.automatic THEN
        RETURN own.id; -- begun by this transaction
    END IF;
    PERFORM reconciler.check_apply(begin_apply.title, begin_apply.on_failure, begin_apply.strategy, begin_apply.waves, begin_apply.soak, begin_apply.attempts, begin_apply.labels);
    IF own.id IS NOT NULL THEN -- begin_apply() takes precedence over set_applies()
        UPDATE reconciler.applies a
        SET title = begin_apply.title, on_failure = begin_apply.on_failure, strategy = begin_apply.strategy,
            waves = begin_apply.waves, soak = begin_apply.soak, attempts = begin_apply.attempts,
            labels = coalesce(begin_apply.labels, '{}'), automatic = false
        WHERE a.id = own.id;
        RETURN own.id;
    END IF;
    FOR look IN 1..10 LOOP
        INSERT INTO reconciler.applies (epoch, xid, xids, title, on_failure, strategy, waves, soak, attempts, labels)
        VALUES (here, pg_current_xact_id(), ARRAY[pg_current_xact_id()], begin_apply.title, begin_apply.on_failure,
            begin_apply.strategy, begin_apply.waves, begin_apply.soak, begin_apply.attempts,
            coalesce(begin_apply.labels, '{}'))
        ON CONFLICT DO NOTHING RETURNING id INTO n;
        EXIT WHEN n IS NOT NULL;
        PERFORM reconciler.raise_sequences(); -- the id is taken
    END LOOP;
    IF n IS NULL THEN
        RAISE EXCEPTION 'the ids of applies are behind in this database, and another transaction sets them forward'
            USING ERRCODE = 'lock_not_available', HINT = 'Try again.';
    END IF;
    INSERT INTO reconciler.outbox (resource_id, dependency_id) VALUES (0, 0);
    PERFORM reconciler.wake_leader();
    RETURN n;
END
$$;

-- begin_resync is an apply of what is there: it applies objects of a resource again, also where nothing has changed. Each gets
-- an outbox row, as if its row had been touched.
CREATE FUNCTION reconciler.begin_resync(resource text, title text DEFAULT NULL, targets text[] DEFAULT NULL, keys text[] DEFAULT NULL, on_failure text DEFAULT 'halt',
    strategy text DEFAULT 'rolling', waves jsonb DEFAULT NULL, soak interval DEFAULT '0', attempts integer DEFAULT 10, labels jsonb DEFAULT '{}') RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted_resource integer := reconciler.named_resource(begin_resync.resource);
    unknown         text;
    n               bigint;
BEGIN
    IF wanted_resource IS NULL THEN
        RAISE EXCEPTION 'resource is NULL: name a resource' USING ERRCODE = 'null_value_not_allowed', HINT = reconciler.resource_names();
    END IF;
    SELECT x INTO unknown FROM unnest(begin_resync.targets) AS x WHERE NOT EXISTS (SELECT FROM reconciler.targets t WHERE t.name = x AND t.configured) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'no running process has a target %', quote_nullable(unknown) USING ERRCODE = 'undefined_object', HINT = reconciler.target_names();
    END IF;
    SELECT x INTO unknown FROM unnest(begin_resync.keys) AS x WHERE NOT EXISTS (SELECT FROM reconciler.targets t JOIN reconciler.ledger l ON l.target_id = t.id
        WHERE t.configured AND (begin_resync.targets IS NULL OR t.name = ANY (begin_resync.targets)) AND l.resource_id = wanted_resource AND l.key = x) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'no target has object % of resource %', quote_nullable(unknown), begin_resync.resource USING ERRCODE = 'no_data_found';
    END IF;
    n := reconciler.begin_apply(coalesce(begin_resync.title, 'resync of ' || begin_resync.resource), begin_resync.on_failure, begin_resync.strategy, begin_resync.waves,
        begin_resync.soak, begin_resync.attempts, begin_resync.labels);
    UPDATE reconciler.applies a SET reapply = true WHERE a.id = n;
    INSERT INTO reconciler.outbox (resource_id, target, key)
    SELECT wanted_resource, t.name, l.key FROM reconciler.targets t CROSS JOIN LATERAL (SELECT x.key FROM reconciler.ledger x WHERE x.target_id = t.id AND x.resource_id = wanted_resource OFFSET 0) AS l
    WHERE t.configured AND (begin_resync.targets IS NULL OR t.name = ANY (begin_resync.targets)) AND (begin_resync.keys IS NULL OR l.key = ANY (begin_resync.keys));
    RETURN n;
END
$$;

-- set_applies has each transaction that changes a resource begin an apply by itself, with these arguments; or no longer.
CREATE FUNCTION reconciler.set_applies(resource text, enabled boolean, title text DEFAULT NULL, on_failure text DEFAULT 'halt', strategy text DEFAULT 'rolling', waves jsonb DEFAULT NULL,
    soak interval DEFAULT '0', attempts integer DEFAULT 10, labels jsonb DEFAULT '{}') RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r      reconciler.resources;
    wanted jsonb;
BEGIN
    IF set_applies.resource IS NULL OR set_applies.enabled IS NULL THEN
        RAISE EXCEPTION '% is NULL', CASE WHEN set_applies.resource IS NULL THEN 'resource' ELSE 'enabled' END USING ERRCODE = 'null_value_not_allowed';
    END IF;
    -- A track() at the same time would generate code for the other setting.
    PERFORM reconciler.lock_definitions();
    SELECT * INTO r FROM reconciler.resources x WHERE x.id = reconciler.named_resource(set_applies.resource);
    PERFORM reconciler.check_owner(r.id);
    IF r.removed_at IS NOT NULL THEN
        RAISE EXCEPTION 'resource % is being deleted', r.name USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSIF set_applies.enabled AND r.relation = to_regclass('reconciler.apply_events') THEN
        RAISE EXCEPTION 'resource % is made of the ends of applies: each would begin another', r.name USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSIF set_applies.enabled THEN
        PERFORM reconciler.check_apply(coalesce(set_applies.title, 'change of ' || r.name), set_applies.on_failure, set_applies.strategy, set_applies.waves, set_applies.soak, set_applies.attempts, set_applies.labels);
        wanted := jsonb_build_object('title', coalesce(set_applies.title, 'change of ' || r.name), 'on_failure', set_applies.on_failure, 'strategy', set_applies.strategy, 'waves', set_applies.waves,
            'soak', set_applies.soak, 'attempts', set_applies.attempts, 'labels', set_applies.labels);
    END IF;
    IF r.rollout IS NOT DISTINCT FROM wanted THEN
        RETURN 'unchanged';
    END IF;
    UPDATE reconciler.resources x SET rollout = wanted WHERE x.id = r.id RETURNING * INTO r;
    PERFORM reconciler.install_functions(r);
    RETURN CASE WHEN set_applies.enabled THEN format('each transaction that changes %s is an apply from now on', r.name) ELSE format('changes of %s are no applies any more, by themselves', r.name) END;
END
$$;

-- begin_rollout is what the capture triggers of such a resource call for each row. Where it fails they go on without an
-- apply, see end_code().
CREATE FUNCTION reconciler.begin_rollout(resource_id integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    with_ jsonb;
    n     bigint;
BEGIN
    IF EXISTS (SELECT FROM reconciler.applies a
               WHERE a.epoch = coalesce((SELECT s.epoch FROM reconciler.installation s), 0)
                 AND a.xid = pg_current_xact_id() AND a.created_at >= transaction_timestamp() - interval '1 hour') THEN
        RETURN;
    END IF;
    SELECT r.rollout INTO with_ FROM reconciler.resources r WHERE r.id = begin_rollout.resource_id AND r.rollout IS NOT NULL;
    IF FOUND THEN
        n := reconciler.begin_apply(with_ ->> 'title', with_ ->> 'on_failure', with_ ->> 'strategy', nullif(with_ -> 'waves', 'null'), (with_ ->> 'soak')::interval, (with_ ->> 'attempts')::integer, with_ -> 'labels');
        UPDATE reconciler.applies a SET automatic = true WHERE a.id = n;
    END IF;
END
$$;

-- wake_leader does what wake_code() has the capture triggers do, after an outbox row that no trigger wrote.
CREATE FUNCTION reconciler.wake_leader() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (SELECT s.notify FROM reconciler.settings s) AND NOT (pg_try_advisory_lock_shared(reconciler.sleep_lock()) AND pg_advisory_unlock_shared(reconciler.sleep_lock())) THEN
        PERFORM pg_notify('reconciler_wake', '');
    END IF;
END
$$;

-- check_apply refuses arguments of begin_apply that make no sense, before anything is written.
CREATE FUNCTION reconciler.check_apply(title text, on_failure text, strategy text, waves jsonb, soak interval, attempts integer, labels jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong text;
BEGIN
    wrong := CASE
        WHEN coalesce(length(title), 0) NOT BETWEEN 1 AND 200 THEN format('title must have 1 to 200 characters, not %s', coalesce(length(title), 0))
        WHEN on_failure IS NULL OR on_failure NOT IN ('halt', 'continue', 'pause') THEN format('on_failure must be ''halt'', ''continue'' or ''pause'', not %s', quote_nullable(on_failure))
        WHEN strategy IS NULL OR strategy NOT IN ('rolling', 'parallel', 'waves') THEN format('strategy must be ''rolling'', ''parallel'' or ''waves'', not %s', quote_nullable(strategy))
        WHEN strategy = 'waves' AND waves IS NULL THEN 'strategy ''waves'' needs waves, such as ''[["eu"], ["us", "asia"]]'''
        WHEN soak IS NULL OR soak NOT BETWEEN '0' AND '1 year' THEN format('soak must be an interval from zero to a year, not %s', quote_nullable(soak::text))
        WHEN attempts IS NULL OR attempts NOT BETWEEN 1 AND 1000 THEN format('attempts must be 1 to 1000, not %s', coalesce(attempts::text, 'NULL'))
        WHEN octet_length(labels::text) > 65536 THEN format('labels must have at most 65536 bytes, not %s', octet_length(labels::text))
        WHEN octet_length(waves::text) > 1048576 THEN format('waves must have at most 1048576 bytes, not %s', octet_length(waves::text))
        WHEN jsonb_typeof(labels) <> 'object' THEN format('labels must be a JSON object, not %s', labels) END;
    IF wrong IS NULL AND waves IS NOT NULL THEN
        wrong := CASE
            WHEN jsonb_typeof(waves) <> 'array' OR EXISTS (SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(waves) = 'array' THEN waves ELSE '[0]' END) AS w
                WHERE jsonb_typeof(w) <> 'array' OR EXISTS (SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(w) = 'array' THEN w ELSE '[0]' END) AS t WHERE jsonb_typeof(t) <> 'string'))
                THEN format('waves must be a list of lists of targets, such as ''[["eu"], ["us", "asia"]]'', not %s', waves)
            ELSE (SELECT format('waves name target %s twice', quote_literal(t)) FROM jsonb_array_elements(waves) AS w, jsonb_array_elements_text(w) AS t GROUP BY t HAVING count(*) > 1 ORDER BY t LIMIT 1) END;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- wave_of is the number of the wave that a target is in; those that no wave names come last, together. (In SQL it and the next
-- one would be parsed and planned for each statement that calls them; that was a third of the time to open an apply.)
CREATE FUNCTION reconciler.wave_of(waves jsonb, target text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce((SELECT w.n::integer FROM jsonb_array_elements(waves) WITH ORDINALITY AS w(names, n) WHERE w.names ? target), coalesce(jsonb_array_length(waves), 0) + 1);
END
$$;

-- derive_apply is the state of an apply: from how many of its operations are in which state, and what people want of it.
-- troubled: a task has failed, or was superseded after that. Everything that shows or stores a state has it from here.
CREATE FUNCTION reconciler.derive_apply(pending bigint, running bigint, stopping bigint, stopped bigint,
    completed bigint, superseded bigint, failed bigint, halted bigint, cancelled bigint, troubled boolean, on_failure text, wish text, released boolean) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE
        WHEN pending + running + stopping + stopped = 0 THEN CASE
            WHEN failed + halted > 0 THEN 'failed'
            WHEN cancelled > 0 THEN 'cancelled'
            WHEN superseded > 0 THEN 'superseded'
            ELSE 'completed' END
        WHEN wish IN ('stop', 'cancel') THEN CASE WHEN wish = 'cancel' OR pending + running + stopping > 0 THEN 'stopping' ELSE 'stopped' END
        WHEN running > 0 THEN CASE WHEN troubled OR failed > 0 THEN 'degraded' ELSE 'running' END
        WHEN stopping > 0 THEN 'stopping'
        WHEN pending > 0 THEN CASE
            WHEN wish = 'pause'
                OR on_failure = 'pause' AND (failed > 0 OR superseded > 0 AND troubled) AND NOT released THEN 'paused'
            WHEN stopped + completed + superseded + failed + halted + cancelled = 0 THEN 'pending'
            WHEN troubled OR failed > 0 THEN 'degraded'
            ELSE 'running' END
        ELSE 'stopped' END;
END
$$;

-- health_after is when the health of an operation's target must have been asked for at the earliest, so that the answer
-- lets the apply go on: at the end of its soak time, and after a person last had the apply go on. While nobody waited
-- nobody asked: what was healthy before a pause of days says nothing.
CREATE FUNCTION reconciler.health_after(a reconciler.applies, o reconciler.operations) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT greatest(o.completed_at + a.soak, a.resumed_at) $$;

-- health_of is the newest answer about what an operation has brought to its target: about its objects, or about the target as a whole.
CREATE FUNCTION reconciler.health_of(o reconciler.operations, t reconciler.targets, OUT asked_at timestamptz, OUT unhealthy text)
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN NOT t.reports_objects THEN t.health_asked_at WHEN o.health_term = t.term THEN o.health_asked_at END,
        CASE WHEN NOT t.reports_objects THEN t.unhealthy WHEN o.health_term = t.term THEN o.unhealthy END
$$;

-- health_text says why the target of a completed operation is not healthy. An answer from before it completed is about
-- something else. What brought nothing there has nothing to be healthy.
CREATE FUNCTION reconciler.health_text(a reconciler.applies, o reconciler.operations, t reconciler.targets) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN o.started_at IS NOT NULL AND h.asked_at >= greatest(o.completed_at, a.resumed_at) THEN 'not healthy: ' || h.unhealthy END
    FROM reconciler.health_of(o, t) AS h
$$;

-- health_ask is the newest call of ask_health() that somebody may still wait for; NULL for none.
CREATE FUNCTION reconciler.health_ask(target_id integer) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT max(k.at) FROM reconciler.health_asks k WHERE k.target_id = health_ask.target_id AND k.until > clock_timestamp()
$$;

-- health_waits are what waits for the health of a target: an operation for each apply that goes on when it is healthy, and 0 for
-- ask_health(). since: older answers are about something else; after: those asked for from then on end the waiting; due: it is time
-- to ask. A target that is asked as a whole is asked as long as an apply waits for others, too: it may fall ill again.
CREATE FUNCTION reconciler.health_waits(target_id integer) RETURNS TABLE (operation_id bigint, since timestamptz, after timestamptz, due boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT o.id, greatest(o.completed_at, a.resumed_at), w.after,
        NOT t.reports_objects OR w.after <= clock_timestamp() OR NOT coalesce(h.unhealthy IS NULL AND h.asked_at >= greatest(o.completed_at, a.resumed_at), false)
    FROM reconciler.targets t JOIN reconciler.operations o ON o.target_id = t.id JOIN reconciler.applies a ON a.id = o.apply_id
    CROSS JOIN LATERAL reconciler.health_after(a, o) AS w(after) CROSS JOIN LATERAL reconciler.health_of(o, t) AS h
    WHERE t.id = health_waits.target_id AND t.reports_health AND a.completed_at IS NULL AND a.state IN ('running', 'degraded') AND a.strategy <> 'parallel' AND o.state IN ('completed', 'superseded') AND o.started_at IS NOT NULL
      AND EXISTS (SELECT FROM reconciler.operations p WHERE p.apply_id = a.id AND p.ordinal > o.ordinal AND p.state = 'pending')
      AND NOT coalesce(t.reports_objects AND h.unhealthy IS NULL AND h.asked_at >= w.after, false)
    UNION ALL
    SELECT 0, k.at, k.at, true
    FROM reconciler.targets t CROSS JOIN LATERAL reconciler.health_ask(t.id) AS k(at)
    WHERE t.id = health_waits.target_id AND t.reports_health AND k.at IS NOT NULL AND NOT coalesce(t.unhealthy IS NULL AND t.health_asked_at >= k.at, false)
$$;

-- front says where a rollout stands: the first operation in order that is not passed. One where something has failed
-- is passed when the rollout goes on past failures. failed: the first where something has failed, until the same has
-- been applied there. unhealthy: what speaks against those before it; unasked: whose answer is still to come.
CREATE FUNCTION reconciler.front(a reconciler.applies) RETURNS reconciler.apply_front
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_ reconciler.apply_front;
BEGIN
    SELECT f.ordinal, f.target, f.state,
        (SELECT o.target FROM reconciler.operations o WHERE o.apply_id = a.id AND o.unproven ORDER BY o.ordinal, o.target LIMIT 1),
        (SELECT max(o.completed_at) + a.soak FROM reconciler.operations o
         WHERE o.apply_id = a.id AND o.ordinal < f.ordinal AND o.state IN ('completed', 'superseded', 'failed') AND o.started_at IS NOT NULL AND a.soak > '0'),
        (SELECT t.name || coalesce(' ' || reconciler.circuit_text(t), ': ' || t.trouble, ': ' || reconciler.health_text(a, o, t)) FROM reconciler.operations o JOIN reconciler.targets t ON t.id = o.target_id
         WHERE o.apply_id = a.id AND o.ordinal < f.ordinal AND o.state IN ('completed', 'superseded')
           AND (t.circuit_open_since IS NOT NULL OR t.trouble IS NOT NULL OR reconciler.health_text(a, o, t) IS NOT NULL) ORDER BY o.ordinal, o.target LIMIT 1),
        (SELECT t.name FROM reconciler.operations o JOIN reconciler.targets t ON t.id = o.target_id
         WHERE o.apply_id = a.id AND o.ordinal < f.ordinal AND o.state IN ('completed', 'superseded') AND o.started_at IS NOT NULL AND t.reports_health
           AND coalesce((reconciler.health_of(o, t)).asked_at, '-infinity') < reconciler.health_after(a, o) ORDER BY o.ordinal, o.target LIMIT 1)
    INTO found_ FROM (SELECT) AS one LEFT JOIN LATERAL (
        SELECT o.ordinal, o.target, o.state FROM reconciler.operations o
        WHERE o.apply_id = a.id AND o.state NOT IN ('completed', 'cancelled') AND NOT (o.state = 'superseded' AND NOT o.unproven)
          AND NOT (o.state IN ('superseded', 'failed') AND (a.on_failure = 'continue' OR a.on_failure = 'pause' AND a.released))
        ORDER BY o.ordinal, o.target LIMIT 1) AS f ON true;
    RETURN found_;
END
$$;

-- waiting says what an operation waits for. The claim asks it (phase 'next': it may start) and so does everything that is
-- shown, so that the two cannot differ. until: when it looks different by itself.
CREATE FUNCTION reconciler.waiting(a reconciler.applies, o reconciler.operations, f reconciler.apply_front, OUT phase text, OUT detail text, OUT until timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t     reconciler.targets;
    again record;
BEGIN
    phase := o.state;
    CASE o.state
    WHEN 'pending' THEN
        IF a.opened_at IS NULL THEN
            phase := 'opening'; detail := 'its changes are being counted';
        ELSIF a.wish IN ('stop', 'cancel') THEN
            phase := 'stopped'; detail := 'not started';
        ELSIF a.on_failure = 'halt' AND f.failed IS NOT NULL AND NOT o.unproven THEN
            phase := 'waiting'; detail := format('waiting for %s: it failed, and is tried again', f.failed);
        ELSIF a.wish = 'pause' THEN
            phase := 'paused'; detail := format('paused; %s', reconciler.apply_call('release', a.id));
        ELSIF a.on_failure = 'pause' AND NOT a.released AND f.failed IS NOT NULL AND NOT o.unproven THEN
            phase := 'paused'; detail := format('paused: %s failed; %s', f.failed, reconciler.apply_call('release', a.id));
        ELSIF a.strategy <> 'parallel' AND f.ordinal < o.ordinal THEN
            phase := 'waiting'; detail := format('waiting for %s', f.target);
        ELSIF a.strategy <> 'parallel' AND f.unhealthy IS NOT NULL THEN
            phase := 'waiting'; detail := format('waiting for %s', f.unhealthy);
        ELSIF a.strategy <> 'parallel' AND f.soaked_until > clock_timestamp() THEN
            phase := 'soaking'; detail := format('soaking until %s', date_trunc('second', f.soaked_until)); until := f.soaked_until;
        ELSIF a.strategy <> 'parallel' AND f.unasked IS NOT NULL THEN
            SELECT * INTO t FROM reconciler.targets x WHERE x.name = f.unasked;
            phase := 'waiting'; detail := concat_ws('; ', format('waiting for %s: its health is being asked', f.unasked), reconciler.explain_target(t, f.unasked));
        ELSE
            phase := 'next';
            SELECT * INTO t FROM reconciler.targets x WHERE x.id = o.target_id;
            detail := concat_ws(': ', 'next in order', reconciler.explain_target(t, o.target));
        END IF;
    WHEN 'running' THEN
        SELECT count(*) AS tasks, max(k.attempts) + 1 AS attempt, min(l.next_attempt_at) AS at INTO again
        FROM reconciler.tasks k LEFT JOIN LATERAL (SELECT x.next_attempt_at FROM reconciler.ledger x
            WHERE x.target_id = k.target_id AND x.resource_id = k.resource_id AND x.key = k.key AND x.state = 'failing' LIMIT 1) AS l ON true
        WHERE k.operation_id = o.id AND k.state = 'pending' AND k.attempts > 0;
        SELECT * INTO t FROM reconciler.targets x WHERE x.id = o.target_id;
        detail := format('%s of %s', o.completed + o.superseded, reconciler.counted(o.tasks, 'object'));
        IF again.tasks > 0 THEN
            IF o.completed + o.failed + o.superseded + o.cancelled + again.tasks = o.tasks THEN
                phase := 'retrying';
            END IF;
            detail := format('%s; %s retrying, attempt %s%s', detail, again.tasks, again.attempt, ', next ' || date_trunc('second', again.at));
            until := again.at;
        END IF;
        detail := concat_ws('; ', detail, reconciler.explain_target(t, o.target));
    WHEN 'stopping' THEN
        detail := 'calls that are on their way end';
    WHEN 'stopped' THEN
        detail := format('%s of %s; %s', o.completed + o.superseded, reconciler.counted(o.tasks, 'object'), reconciler.apply_call('start', a.id));
    WHEN 'completed', 'superseded' THEN
        detail := concat_ws(', ', reconciler.counted(o.completed, 'object'), CASE WHEN o.superseded > 0 THEN o.superseded || ' superseded' END);
        IF a.strategy <> 'parallel' AND o.ordinal < f.ordinal THEN
            detail := concat_ws('; ', detail, (SELECT reconciler.health_text(a, o, x) FROM reconciler.targets x WHERE x.id = o.target_id));
        END IF;
    WHEN 'failed' THEN
        detail := format('%s of %s failed: %s', o.failed, reconciler.counted(o.tasks, 'object'), coalesce(o.error, 'no reason known'));
    WHEN 'halted' THEN
        detail := coalesce(o.error, 'halted');
    ELSE
        detail := coalesce(o.error, CASE WHEN o.started_at IS NULL THEN 'not started' ELSE format('%s of %s', o.completed + o.superseded, reconciler.counted(o.tasks, 'object')) END);
    END CASE;
    IF o.state IN ('halted', 'cancelled') AND NOT o.done THEN
        detail := concat_ws('; ', detail, CASE WHEN o.is_open THEN 'its objects follow their rows again'
            ELSE 'its objects keep what they have until ' || reconciler.apply_call('release', a.id) END);
    END IF;
END
$$;

-- apply_call is a command on an apply, to copy.
CREATE FUNCTION reconciler.apply_call(command text, apply_id bigint) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT format('SELECT reconciler.apply_%s(%s);', command, apply_id) $$;

-- note_apply adds a row to the log, and so a version. The caller holds the apply.
CREATE FUNCTION reconciler.note_apply(apply_id bigint, what text, why text DEFAULT NULL, was text DEFAULT NULL, state text DEFAULT NULL, target text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    event bigint;
BEGIN
    WITH grown AS (UPDATE reconciler.applies a SET version = a.version + 1 WHERE a.id = note_apply.apply_id RETURNING a.version)
    INSERT INTO reconciler.apply_log (apply_id, version, what, why, was, state, target)
    SELECT note_apply.apply_id, g.version, note_apply.what, note_apply.why, note_apply.was, note_apply.state, note_apply.target FROM grown g RETURNING id INTO event;
    RETURN event;
END
$$;

-- refresh_apply derives the state of an apply from all its operations and writes it. The caller holds the apply's row
-- since an earlier statement: what somebody else had changed before is seen here (in one statement it would not be: two
-- operations that end at once would leave the apply running). First what the wish and a failure mean for operations that
-- have not started is written to these, so that a terminal state has every operation settled. What a halt kept from
-- starting waits for its turn again when what failed is tried again; waiting() holds it until that has been applied.
CREATE FUNCTION reconciler.refresh_apply(apply_id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a       reconciler.applies;
    c       record;
    first_  record;
    derived text;
    message text;
    event   bigint;
BEGIN
    SELECT * INTO a FROM reconciler.applies x WHERE x.id = refresh_apply.apply_id FOR NO KEY UPDATE;
    IF a.opened_at IS NULL THEN
        RETURN a.state; -- its operations are being written
    END IF;
    SELECT o.target, o.error INTO first_ FROM reconciler.operations o
    WHERE o.apply_id = a.id AND o.unproven AND o.completed_at IS NOT NULL ORDER BY o.ordinal, o.target LIMIT 1;
    IF a.wish = 'cancel' THEN
        -- What has failed goes on being tried, and is not held.
        UPDATE reconciler.tasks k SET state = CASE k.state WHEN 'pending' THEN 'cancelled' ELSE k.state END,
            governs = k.state = 'pending', settled_at = coalesce(k.settled_at, clock_timestamp())
        FROM reconciler.operations o WHERE o.apply_id = a.id AND o.state IN ('pending', 'stopped', 'halted')
            AND k.operation_id = o.id AND k.state IN ('pending', 'failed');
        UPDATE reconciler.operations o SET state = 'cancelled', completed_at = clock_timestamp(), cancelled = o.tasks - o.completed - o.failed - o.superseded
        WHERE o.apply_id = a.id AND o.state IN ('pending', 'stopped', 'halted');
    ELSIF a.wish = 'stop' THEN
        UPDATE reconciler.operations o SET state = 'stopped' WHERE o.apply_id = a.id AND o.state = 'pending';
    ELSIF a.on_failure = 'halt' AND first_.target IS NOT NULL THEN
        UPDATE reconciler.operations o SET state = 'halted', completed_at = clock_timestamp(), error = format('halted: %s failed', first_.target)
        WHERE o.apply_id = a.id AND o.state = 'pending' AND NOT o.unproven;
    ELSE
        UPDATE reconciler.operations o SET state = 'pending', is_open = false, xid = pg_current_xact_id(), error = NULL,
            completed_at = NULL
        WHERE o.apply_id = a.id AND o.state = 'halted';
    END IF;
    SELECT count(*) FILTER (WHERE o.state = 'pending') AS pending, count(*) FILTER (WHERE o.state = 'running') AS running,
        count(*) FILTER (WHERE o.state = 'stopping') AS stopping, count(*) FILTER (WHERE o.state = 'stopped') AS stopped,
        count(*) FILTER (WHERE o.state = 'completed') AS completed,
        count(*) FILTER (WHERE o.state = 'superseded') AS superseded,
        count(*) FILTER (WHERE o.state = 'failed') AS failed, count(*) FILTER (WHERE o.state = 'halted') AS halted,
        count(*) FILTER (WHERE o.state = 'cancelled') AS cancelled,
        coalesce(bool_or(o.failed > 0 OR o.state = 'superseded' AND o.unproven), false) AS troubled,
        min(o.started_at) AS started_at
    INTO c FROM reconciler.operations o WHERE o.apply_id = a.id;
    derived := reconciler.derive_apply(c.pending, c.running, c.stopping, c.stopped, c.completed, c.superseded, c.failed,
        c.halted, c.cancelled, c.troubled, a.on_failure, a.wish, a.released);
    message := CASE WHEN first_.target IS NOT NULL THEN format('%s failed: %s', first_.target, coalesce(first_.error, 'no reason known')) END;
    PERFORM pg_notify('reconciler_turn', '');
    IF (derived, message) IS NOT DISTINCT FROM (a.state, a.error_message) THEN
        RETURN derived;
    END IF;
    UPDATE reconciler.applies x SET state = derived, error_message = message, started_at = coalesce(x.started_at, c.started_at),
        completed_at = CASE WHEN derived IN ('completed', 'superseded', 'failed', 'cancelled')
            THEN coalesce(x.completed_at, clock_timestamp()) END
    WHERE x.id = a.id;
    IF derived <> a.state THEN
        event := reconciler.note_apply(a.id, 'state', message, a.state, derived);
        PERFORM reconciler.tell_state(a, event, derived, message);
    END IF;
    RETURN derived;
END
$$;

-- tell_state notifies listeners of a new state, and writes an event at the end of an apply, for the outbox and hooks. An
-- apply that has ended and becomes superseded writes no second one. The transaction is flushed before anything leaves.
CREATE FUNCTION reconciler.tell_state(a reconciler.applies, event bigint, state text, message text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_notify('reconciler_applies', jsonb_build_object('apply', a.id, 'title', a.title, 'was', a.state, 'state', tell_state.state)::text);
    IF a.completed_at IS NULL AND tell_state.state IN ('completed', 'superseded', 'failed', 'cancelled') THEN
        INSERT INTO reconciler.outbox (resource_id, dependency_id, image) VALUES (0, 0, jsonb_build_object('apply', a.id, 'event', event, 'state', tell_state.state));
        INSERT INTO reconciler.apply_events (id, apply_id, title, state, error, labels, begun_by) VALUES (event, a.id, a.title, tell_state.state, message, a.labels, a.created_by);
        PERFORM set_config('synchronous_commit', 'on', true);
        PERFORM reconciler.wake_leader();
    END IF;
END
$$;

-- settle_operations settles those operations that have no pending task left. The caller holds their applies. An object
-- that failed and is superseded proves nothing about the other targets: only the same spec, applied, does. What has
-- failed goes on being tried, so the gate is open, also when the last call ended after a stop.
CREATE FUNCTION reconciler.settle_operations(ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE reconciler.operations o SET
        state = CASE WHEN o.failed > 0 THEN 'failed' WHEN o.superseded > 0 THEN 'superseded' ELSE 'completed' END,
        is_open = o.is_open OR o.failed > 0,
        unproven = o.failed > 0 OR u.error IS NOT NULL,
        error = CASE WHEN o.failed > 0 THEN o.error WHEN o.state = 'halted' OR o.error IS NULL OR u.error IS NULL THEN u.error
            ELSE o.error END,
        completed_at = coalesce(o.completed_at, clock_timestamp())
    FROM reconciler.operations p LEFT JOIN LATERAL (
        SELECT format('%s: %s', k.key, coalesce(k.error, 'no reason known')) AS error FROM reconciler.tasks k
        WHERE k.operation_id = p.id AND k.state = 'superseded' AND k.tried IS NOT NULL
        ORDER BY k.resource_id, k.key LIMIT 1) AS u ON p.superseded > 0
    WHERE o.id = p.id AND p.id = ANY (ids)
      AND p.state IN ('pending', 'running', 'stopping', 'stopped', 'superseded', 'halted')
      AND p.tasks = p.completed + p.failed + p.superseded + p.cancelled;
    UPDATE reconciler.operations o SET done = true
    WHERE o.id = ANY (ids) AND o.completed_at IS NOT NULL AND NOT o.done
      AND NOT EXISTS (SELECT FROM reconciler.tasks k WHERE k.operation_id = o.id AND k.governs);
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.begin_apply IS 'Makes the changes of this transaction one apply, to be followed as a rollout, and returns its number. on_failure: halt, continue or pause; strategy: rolling (one target after the other), waves or parallel; attempts: how often an object may fail.';
COMMENT ON FUNCTION reconciler.begin_resync IS 'Begins an apply that applies objects of a resource again, also where nothing has changed: all of them, or those with these keys, in all targets or these.';
COMMENT ON FUNCTION reconciler.set_applies IS 'Has each transaction that changes a resource begin an apply by itself, with these arguments of begin_apply(); false: no longer.';
COMMENT ON FUNCTION reconciler.begin_rollout IS 'Internal: begins the apply of a transaction, as set_applies() says.';
COMMENT ON FUNCTION reconciler.tell_state IS 'Internal: tells of a new state of an apply.';
COMMENT ON FUNCTION reconciler.wake_leader IS 'Internal: notifies the leader if it sleeps.';
COMMENT ON FUNCTION reconciler.check_apply IS 'Internal: checks the arguments of begin_apply().';
COMMENT ON FUNCTION reconciler.wave_of IS 'Internal: which wave a target is in.';
COMMENT ON FUNCTION reconciler.derive_apply IS 'Internal: the state of an apply, from the states of its operations and from what people want of it.';
COMMENT ON FUNCTION reconciler.health_after IS 'Internal: since when an answer about the health of an operation''s target counts.';
COMMENT ON FUNCTION reconciler.health_of IS 'Internal: the newest answer about what an operation has brought to its target.';
COMMENT ON FUNCTION reconciler.health_ask IS 'Internal: the newest ask_health() of a target.';
COMMENT ON FUNCTION reconciler.health_text IS 'Internal: why the target of a completed operation is not healthy.';
COMMENT ON FUNCTION reconciler.health_waits IS 'Internal: what waits for the health of a target.';
COMMENT ON FUNCTION reconciler.front IS 'Internal: where a rollout stands.';
COMMENT ON FUNCTION reconciler.waiting IS 'Internal: what an operation waits for.';
COMMENT ON FUNCTION reconciler.apply_call IS 'Internal: a command on an apply, to copy.';
COMMENT ON FUNCTION reconciler.note_apply IS 'Internal: adds a row to the log of an apply.';
COMMENT ON FUNCTION reconciler.refresh_apply IS 'Internal: derives and writes the state of an apply.';
COMMENT ON FUNCTION reconciler.settle_operations IS 'Internal: settles operations without pending tasks.';

-- +goose StatementBegin
-- apply_objects are the objects that a piece of an apply's outbox rows names, each with its highest seq. A NULL target
-- means every target of a config; a row without key every object of the resource in the ledger, or about to be.
CREATE FUNCTION reconciler.apply_objects(xids xid8[], from_xid xid8, from_seq bigint, to_xid xid8, to_seq bigint)
RETURNS TABLE (target_id integer, target text, resource_id integer, key text, seq bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY WITH piece AS MATERIALIZED (
        -- Each transaction by itself: of a range over several the index would read what lies between.
        SELECT o.resource_id, o.target, o.key COLLATE "C" AS key, max(o.seq) AS seq
        FROM unnest(xids) AS x CROSS JOIN LATERAL (
            SELECT i.resource_id, i.target, i.key, i.seq FROM reconciler.outbox i
            WHERE i.xid = x AND i.seq > CASE WHEN x = from_xid THEN from_seq ELSE -1 END AND i.seq <= CASE WHEN x = to_xid THEN to_seq ELSE 9223372036854775807 END
              AND i.dependency_id IS NULL ORDER BY i.xid, i.seq OFFSET 0) AS o
        WHERE x >= from_xid AND x <= to_xid GROUP BY 1, 2, 3
    ), objects AS (
        SELECT t.id AS target_id, t.name AS target, p.resource_id, p.key, p.seq
        FROM piece p CROSS JOIN LATERAL (SELECT y.id, y.name FROM reconciler.targets y WHERE y.name = p.target OFFSET 0) AS t WHERE p.key IS NOT NULL
        UNION ALL
        SELECT t.id, t.name, p.resource_id, p.key, p.seq FROM piece p CROSS JOIN reconciler.targets t WHERE p.target IS NULL AND p.key IS NOT NULL AND t.configured
        UNION ALL
        SELECT t.id, t.name, p.resource_id, l.key, p.seq
        FROM piece p JOIN reconciler.targets t ON p.target IS NULL OR t.name = p.target
        CROSS JOIN LATERAL (SELECT x.key FROM reconciler.ledger x WHERE x.target_id = t.id AND x.resource_id = p.resource_id OFFSET 0) AS l WHERE p.key IS NULL
        UNION ALL
        SELECT t.id, t.name, p.resource_id, k COLLATE "C", p.seq
        FROM piece p JOIN reconciler.targets t ON p.target IS NULL OR t.name = p.target
        JOIN reconciler.first_calls c ON c.target_id = t.id AND c.resource_id = p.resource_id CROSS JOIN unnest(c.keys) AS k WHERE p.key IS NULL
    )
    SELECT o.target_id, o.target, o.resource_id, o.key, max(o.seq) FROM objects o
    WHERE EXISTS (SELECT FROM reconciler.resources r WHERE r.id = o.resource_id) GROUP BY 1, 2, 3, 4;
END
$$;

-- unopened_applies are the applies whose operations and tasks are not written down yet and that have gates. Who knows which there
-- were at a look before says the oldest transaction that was open then: only what came since is looked at. Those that are known are
-- looked up one by one: the planner would walk the index of all for them.
CREATE FUNCTION reconciler.unopened_applies(since xid8 DEFAULT '0', known bigint[] DEFAULT '{}') RETURNS bigint[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
    SELECT ARRAY(SELECT n.id FROM (SELECT a.id, a.strategy FROM reconciler.applies a WHERE a.opened_at IS NULL AND a.xid >= unopened_applies.since ORDER BY a.xid) AS n
            WHERE n.strategy <> 'parallel'
        UNION SELECT n.id FROM unnest(unopened_applies.known) AS k CROSS JOIN LATERAL (SELECT a.id, a.strategy, a.opened_at FROM reconciler.applies a WHERE a.id = k LIMIT 1) AS n
            WHERE n.opened_at IS NULL AND n.strategy <> 'parallel')
$$;

-- unopened_keys are the objects of a resource that these applies have changed, of those that are not open yet: whether they may be
-- touched is not known. NULL: it may be any of them. A resource that no such apply has changed has none, however much is changed
-- elsewhere. The question is asked in the statement that reads the rows, and answered as of it.
CREATE FUNCTION reconciler.unopened_keys(resource_id integer, applies bigint[]) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    most CONSTANT integer := 1000; -- to read more of the outbox each time would cost more than to wait for all
    n    record;
BEGIN
    SELECT count(*) AS rows, bool_or(o.resource_id = unopened_keys.resource_id AND (o.key IS NULL OR o.dependency_id IS NOT NULL)) AS any_key,
        array_agg(DISTINCT o.key) FILTER (WHERE o.resource_id = unopened_keys.resource_id) AS keys
    INTO n FROM (
        SELECT i.* FROM unnest(unopened_keys.applies) AS one(id) CROSS JOIN LATERAL (SELECT * FROM reconciler.applies x WHERE x.id = one.id LIMIT 1) AS a CROSS JOIN LATERAL unnest(a.xids) AS x CROSS JOIN LATERAL (
            SELECT y.resource_id, y.key, y.dependency_id FROM reconciler.outbox y WHERE y.xid = x ORDER BY y.xid, y.seq LIMIT most + 1) AS i
        WHERE a.opened_at IS NULL AND a.strategy <> 'parallel' LIMIT most + 1) AS o;
    IF n.rows > most THEN
        RETURN CASE WHEN n.keys IS NULL AND NOT EXISTS (
            SELECT FROM unnest(unopened_keys.applies) AS one(id) CROSS JOIN LATERAL (SELECT * FROM reconciler.applies x WHERE x.id = one.id LIMIT 1) AS a CROSS JOIN LATERAL unnest(a.xids) AS x CROSS JOIN LATERAL (
                SELECT FROM reconciler.outbox y WHERE y.xid = x AND y.resource_id = unopened_keys.resource_id LIMIT 1) AS i
            WHERE a.opened_at IS NULL AND a.strategy <> 'parallel') THEN '{}'::text[] END;
    END IF;
    RETURN CASE WHEN n.any_key THEN NULL ELSE coalesce(n.keys, '{}') END;
END
$$;

-- open_apply writes down operations and tasks of an apply, at most so many outbox rows at once, and says whether it is
-- open. The leader calls it until it is, a piece in each transaction; it waits for no lock, and then says no.
-- revision is the one that its changes belong to. Tasks of older applies for the same objects are superseded: for each object seq says which is older.
CREATE FUNCTION reconciler.open_apply(owner uuid, term bigint, apply_id bigint, revision bigint, max_rows integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    a       reconciler.applies;
    here    integer := (SELECT s.epoch FROM reconciler.installation s);
    upto    record;
    n       record;
    touched bigint[];
BEGIN
    PERFORM reconciler.fence_leader(open_apply.owner, open_apply.term);
    SELECT * INTO a FROM reconciler.applies x WHERE x.id = open_apply.apply_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NOT EXISTS (SELECT FROM reconciler.applies x WHERE x.id = open_apply.apply_id); -- somebody holds it, or it is gone
    ELSIF a.opened_at IS NOT NULL THEN
        RETURN true;
    ELSIF a.epoch <> here THEN
        PERFORM reconciler.fail_apply(open_apply.owner, open_apply.term, a.id, 'the database was restored before its changes were read');
        RETURN true;
    ELSIF NOT EXISTS (SELECT FROM (SELECT FROM reconciler.outbox i WHERE i.xid = a.xid ORDER BY i.xid, i.seq LIMIT 1) AS own) THEN -- begin_apply() has written one
        PERFORM reconciler.fail_apply(open_apply.owner, open_apply.term, a.id, 'the outbox was emptied, as it had grown too long or too old, before its changes were read');
        RETURN true;
    END IF;
    SELECT p.xid, p.seq, count(*) OVER () AS rows INTO upto FROM (
        SELECT o.xid, o.seq FROM unnest(a.xids) AS x
        CROSS JOIN LATERAL (SELECT i.xid, i.seq FROM reconciler.outbox i WHERE i.xid = x AND i.seq > CASE WHEN x = a.opened_xid THEN a.opened_seq ELSE -1 END ORDER BY i.xid, i.seq LIMIT max_rows) AS o
        WHERE x >= a.opened_xid ORDER BY o.xid, o.seq LIMIT max_rows) AS p ORDER BY p.xid DESC, p.seq DESC LIMIT 1;
    IF upto.rows > 0 THEN
        SELECT coalesce(array_agg(o.target_id ORDER BY o.target_id, o.resource_id, o.key), '{}') AS target_ids, coalesce(array_agg(o.target ORDER BY o.target_id, o.resource_id, o.key), '{}') AS targets,
            coalesce(array_agg(o.resource_id ORDER BY o.target_id, o.resource_id, o.key), '{}') AS resource_ids, coalesce(array_agg(o.key ORDER BY o.target_id, o.resource_id, o.key), '{}') AS keys,
            coalesce(array_agg(o.seq ORDER BY o.target_id, o.resource_id, o.key), '{}') AS seqs
        INTO n FROM reconciler.apply_objects(a.xids, a.opened_xid, a.opened_seq, upto.xid, upto.seq) AS o;
        INSERT INTO reconciler.operations (apply_id, target_id, target, budget, reapply)
        SELECT DISTINCT a.id, o.target_id, o.target, a.attempts, a.reapply FROM unnest(n.target_ids, n.targets) AS o(target_id, target) ORDER BY o.target ON CONFLICT DO NOTHING;
        -- Older applies that lose an object: all of them are held before any task of theirs is written.
        touched := ARRAY(SELECT DISTINCT o.apply_id FROM unnest(n.target_ids, n.resource_ids, n.keys, n.seqs) AS x(target_id, resource_id, key, seq)
            CROSS JOIN LATERAL (SELECT k.operation_id FROM reconciler.tasks k WHERE k.target_id = x.target_id AND k.resource_id = x.resource_id AND k.key = x.key AND k.governs AND k.seq < x.seq LIMIT 1) AS g
            JOIN reconciler.operations o ON o.id = g.operation_id WHERE o.apply_id <> a.id);
        IF touched <> '{}' THEN
            -- Never waiting: the leadership's row is held here, which the heartbeat needs.
            IF (SELECT count(*) FROM (SELECT FROM reconciler.applies x WHERE x.id = ANY (touched) ORDER BY x.id FOR NO KEY UPDATE SKIP LOCKED) AS held) < cardinality(touched) THEN
                RETURN false;
            END IF;
            PERFORM reconciler.supersede(touched, n.target_ids, n.resource_ids, n.keys, n.seqs);
        END IF;
        -- A key that the ledger cannot hold comes shortened, as unfit() has it: no call is ever made for it.
        INSERT INTO reconciler.tasks AS k (operation_id, target_id, resource_id, key, seq, revision, state, governs, settled_at, error)
        SELECT y.operation_id, y.target_id, y.resource_id, y.key, y.seq, open_apply.revision,
            CASE WHEN y.long THEN 'failed' WHEN y.late THEN 'superseded' ELSE 'pending' END, NOT (y.long OR y.late),
            CASE WHEN y.long OR y.late THEN clock_timestamp() END, CASE WHEN y.long THEN 'its key is longer than 2000 bytes' END
        FROM (SELECT o.id AS operation_id, x.target_id, x.resource_id, x.seq, x.key, x.key ~ '\.\.\. \(sha256 [0-9a-f]{64}\)$' AS long, g.operation_id IS NOT NULL AS late
              FROM unnest(n.target_ids, n.targets, n.resource_ids, n.keys, n.seqs) AS x(target_id, target, resource_id, key, seq)
              CROSS JOIN LATERAL (SELECT p.id FROM reconciler.operations p WHERE p.apply_id = a.id AND p.target = x.target OFFSET 0) AS o
              LEFT JOIN LATERAL (SELECT k.operation_id FROM reconciler.tasks k
                  WHERE k.target_id = x.target_id AND k.resource_id = x.resource_id AND k.key = x.key AND k.governs AND k.operation_id <> o.id LIMIT 1) AS g ON true) AS y
        ORDER BY y.operation_id, y.resource_id, y.key
        ON CONFLICT ON CONSTRAINT tasks_pkey DO UPDATE SET seq = greatest(k.seq, excluded.seq);
        IF upto.rows >= max_rows THEN
            UPDATE reconciler.applies x SET opened_xid = upto.xid, opened_seq = upto.seq WHERE x.id = a.id;
            RETURN false;
        END IF;
    END IF;
    UPDATE reconciler.operations o SET ordinal = c.ordinal, tasks = c.tasks, superseded = c.superseded, failed = c.failed, error = c.error
    FROM (SELECT p.id, CASE WHEN a.strategy = 'waves' THEN reconciler.wave_of(a.waves, p.target) ELSE row_number() OVER (ORDER BY reconciler.wave_of(a.waves, p.target), p.target) END AS ordinal,
              t.tasks, t.superseded, t.failed, t.error
          FROM reconciler.operations p CROSS JOIN LATERAL (SELECT count(*) AS tasks, count(*) FILTER (WHERE k.state = 'superseded') AS superseded,
              count(*) FILTER (WHERE k.state = 'failed') AS failed, min(k.error) AS error FROM reconciler.tasks k WHERE k.operation_id = p.id) AS t
          WHERE p.apply_id = a.id) AS c
    WHERE o.id = c.id;
    UPDATE reconciler.applies x SET opened_at = clock_timestamp(), opened_xid = coalesce(upto.xid, x.opened_xid), opened_seq = coalesce(upto.seq, x.opened_seq) WHERE x.id = a.id;
    PERFORM reconciler.note_apply(a.id, 'open');
    PERFORM reconciler.settle_operations(ARRAY(SELECT o.id FROM reconciler.operations o WHERE o.apply_id = a.id));
    PERFORM reconciler.refresh_apply(a.id);
    RETURN true;
END
$$;

-- open_applies opens applies one after the other until patience is over, in one transaction, which is what an apply costs
-- most. It says how many are open, from the first one on; the next one is in somebody's way, is large, or is to come. Whoever
-- tries an apply again makes tasks govern objects, too, and the index of these lets only one of them: what a transaction that is
-- open has written is waited for no longer than the heartbeat can bear, whose row is held here.
-- Every lookup is by key, so plans that are made once serve small applies and large ones, and to make one takes longer than to use it.
CREATE FUNCTION reconciler.open_applies(owner uuid, term bigint, apply_ids bigint[], revision bigint, max_rows integer, patience interval) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    until timestamptz := clock_timestamp() + patience;
    opened integer := 0;
BEGIN
    WHILE opened < cardinality(apply_ids) AND (opened = 0 OR clock_timestamp() < until) LOOP
        EXIT WHEN NOT reconciler.open_apply(open_applies.owner, open_applies.term, apply_ids[opened + 1], open_applies.revision, open_applies.max_rows);
        opened := opened + 1;
    END LOOP;
    RETURN opened;
END
$$;

-- supersede takes objects from older applies, which the caller holds: a newer one has changed them. What these were to bring
-- there goes with it.
--
-- One task after the other, by its key: where nearly no task governed anything when the table was analyzed, the planner would
-- read all that do for each of these.
CREATE FUNCTION reconciler.supersede(apply_ids bigint[], target_ids integer[], resource_ids integer[], keys text[], seqs bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    lost      record;
    lost_by   bigint[] := '{}'; -- the operation of each
    states    text[] := '{}'; -- and what its task was
    older     bigint;
BEGIN
    FOR lost IN SELECT g.* FROM unnest(supersede.target_ids, supersede.resource_ids, supersede.keys, supersede.seqs) AS n(target_id, resource_id, key, seq)
            CROSS JOIN LATERAL (SELECT k.operation_id, k.resource_id, k.key, k.state FROM reconciler.tasks k
                WHERE k.target_id = n.target_id AND k.resource_id = n.resource_id AND k.key = n.key AND k.governs AND k.seq < n.seq LIMIT 1) AS g
            JOIN reconciler.operations o ON o.id = g.operation_id WHERE o.apply_id = ANY (apply_ids) LOOP
        UPDATE reconciler.tasks k SET state = CASE k.state WHEN 'cancelled' THEN k.state ELSE 'superseded' END,
            governs = false, settled_at = coalesce(k.settled_at, clock_timestamp())
        WHERE k.operation_id = lost.operation_id AND k.resource_id = lost.resource_id AND k.key = lost.key;
        lost_by := lost_by || lost.operation_id;
        states := states || lost.state;
    END LOOP;
    UPDATE reconciler.operations o SET superseded = o.superseded + l.pending + l.failed, failed = o.failed - l.failed,
        state = CASE WHEN o.state = 'failed' AND o.failed = l.failed THEN 'superseded' ELSE o.state END
    FROM (SELECT x.operation_id, count(*) FILTER (WHERE x.state = 'pending') AS pending,
              count(*) FILTER (WHERE x.state = 'failed') AS failed
          FROM unnest(lost_by, states) AS x(operation_id, state) GROUP BY 1) AS l
    WHERE o.id = l.operation_id AND l.pending + l.failed > 0;
    PERFORM reconciler.settle_operations(ARRAY(SELECT DISTINCT x FROM unnest(lost_by) AS x));
    FOREACH older IN ARRAY ARRAY(SELECT x FROM unnest(apply_ids) AS x ORDER BY x) LOOP
        PERFORM reconciler.refresh_apply(older);
    END LOOP;
END
$$;

-- fail_apply opens an apply that cannot be opened, as failed. It holds nothing: a gate must not become a stall.
CREATE FUNCTION reconciler.fail_apply(owner uuid, term bigint, apply_id bigint, reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    a reconciler.applies;
BEGIN
    PERFORM reconciler.fence_leader(fail_apply.owner, fail_apply.term);
    SELECT * INTO a FROM reconciler.applies x WHERE x.id = fail_apply.apply_id AND x.opened_at IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    DELETE FROM reconciler.operations o WHERE o.apply_id = a.id;
    UPDATE reconciler.applies x SET state = 'failed', opened_at = clock_timestamp(), completed_at = clock_timestamp(),
        error_message = format('it could not be opened, and its changes are applied as if there was none: %s', fail_apply.reason) WHERE x.id = a.id;
    PERFORM reconciler.tell_state(a, reconciler.note_apply(a.id, 'state', fail_apply.reason, a.state, 'failed'), 'failed', fail_apply.reason);
    PERFORM pg_notify('reconciler_turn', '');
END
$$;

-- turns says for which targets of a process an apply may have something to do now: a gate to open, calls to end, what a former
-- owner had opened; or whose health it waits for. It is asked whenever an apply changes: of many targets most wait for others, and
-- need not ask one by one. since and known as in unopened_applies(): of the operations of these targets that are not done.
CREATE FUNCTION reconciler.turns(owner uuid, since xid8 DEFAULT '0', known bigint[] DEFAULT '{}') RETURNS TABLE (target_id integer, turn boolean, health boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY WITH asked AS (
        SELECT t.id, EXISTS (SELECT FROM (SELECT x.* FROM reconciler.operations x WHERE x.target_id = t.id AND NOT x.done AND x.xid >= turns.since
                    UNION ALL SELECT y.* FROM unnest(turns.known) AS k CROSS JOIN LATERAL (SELECT x.* FROM reconciler.operations x WHERE x.id = k LIMIT 1) AS y
                        WHERE y.target_id = t.id AND NOT y.done AND y.xid < turns.since) AS o
                JOIN reconciler.applies a ON a.id = o.apply_id WHERE (o.state = 'stopping' OR o.is_open AND o.term IS DISTINCT FROM t.term OR o.state = 'pending' AND a.opened_at IS NOT NULL
                    AND (a.strategy = 'parallel' OR NOT EXISTS (SELECT FROM reconciler.operations p
                        WHERE p.apply_id = o.apply_id AND p.ordinal < o.ordinal AND p.state NOT IN ('completed', 'superseded', 'failed', 'cancelled'))))) AS turn,
            CASE WHEN t.reports_health THEN EXISTS (SELECT FROM reconciler.health_waits(t.id)) ELSE false END AS health
        FROM reconciler.targets t WHERE t.owner = turns.owner
    )
    SELECT k.id, k.turn, k.health FROM asked k WHERE k.turn OR k.health;
END
$$;

-- claim_operations opens the gates of a target whose turn has come, and takes over what a former owner had opened. It says
-- which operations' objects are to be put into the queue now (each is said once in a term), for which an owner has to confirm
-- that nothing is under way, and after how many seconds to ask again (negative: when somebody says so). busy: somebody holds
-- an apply that has something to do here. It is left for the next time: a person's open transaction must not stop the target.
-- since and known as in turns().
CREATE FUNCTION reconciler.claim_operations(target_id integer, owner uuid, term bigint, patience interval, since xid8 DEFAULT '0', known bigint[] DEFAULT '{}')
RETURNS TABLE (operation_ids bigint[], stopping_ids bigint[], again double precision, busy boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    a reconciler.applies;
    o reconciler.operations;
    w record;
    ids bigint[];
    soonest timestamptz;
BEGIN
    PERFORM reconciler.fence(claim_operations.target_id, claim_operations.owner, claim_operations.term);
    operation_ids := '{}'; stopping_ids := '{}'; busy := false;
    ids := ARRAY(SELECT x.id FROM reconciler.operations x WHERE x.target_id = claim_operations.target_id AND NOT x.done AND x.xid >= claim_operations.since
        UNION SELECT k FROM unnest(claim_operations.known) AS k);
    -- Only what there may be something to do for: of many that are under way most are open, and known to be, or stand behind
    -- one that has not ended. Those leave the apply's row to the ones whose turn it is.
    FOR o IN SELECT x.* FROM unnest(ids) AS k CROSS JOIN LATERAL (SELECT * FROM reconciler.operations p WHERE p.id = k LIMIT 1) AS x JOIN reconciler.applies y ON y.id = x.apply_id
        WHERE x.target_id = claim_operations.target_id AND NOT x.done
            AND (x.state = 'stopping' OR x.is_open AND x.term IS DISTINCT FROM claim_operations.term OR x.state = 'pending' AND y.opened_at IS NOT NULL
                AND (y.strategy = 'parallel' OR NOT EXISTS (SELECT FROM reconciler.operations p
                    WHERE p.apply_id = x.apply_id AND p.ordinal < x.ordinal AND p.state NOT IN ('completed', 'superseded', 'failed', 'cancelled')))) ORDER BY x.apply_id LOOP
        IF o.state = 'stopping' THEN
            stopping_ids := stopping_ids || o.id;
            CONTINUE;
        END IF;
        SELECT * INTO a FROM reconciler.applies x WHERE x.id = o.apply_id FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            busy := true;
            CONTINUE;
        END IF;
        -- A statement of its own, after the lock: a stop that came first is seen.
        SELECT * INTO o FROM reconciler.operations x WHERE x.id = o.id;
        IF o.state = 'pending' THEN
            SELECT * INTO w FROM reconciler.waiting(a, o, reconciler.front(a));
            IF w.phase = 'next' THEN
                UPDATE reconciler.operations x SET state = 'running', is_open = true, started_at = coalesce(x.started_at, clock_timestamp()), claims = x.claims + 1, term = claim_operations.term
                WHERE x.id = o.id;
                PERFORM reconciler.let_go(o.id, claim_operations.patience, true);
                PERFORM reconciler.refresh_apply(a.id);
                PERFORM set_config('synchronous_commit', 'on', true); -- calls follow: what they are made for must not be lost
                operation_ids := operation_ids || o.id;
            ELSE
                soonest := least(soonest, w.until);
            END IF;
        ELSIF o.is_open AND o.term IS DISTINCT FROM claim_operations.term THEN
            -- A former owner's; or retried or released while it was open, which takes the term away.
            UPDATE reconciler.operations x SET term = claim_operations.term WHERE x.id = o.id;
            PERFORM reconciler.let_go(o.id, claim_operations.patience, o.term IS NULL);
            operation_ids := operation_ids || o.id;
        END IF;
    END LOOP;
    again := CASE WHEN soonest IS NULL THEN -1 ELSE greatest(extract(epoch FROM soonest - clock_timestamp()), 0.01) END;
    RETURN NEXT;
END
$$;

-- let_go ends the hold of an operation's objects. fresh: objects that failed or are blocked begin anew.
CREATE FUNCTION reconciler.let_go(operation_id bigint, patience interval, fresh boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    UPDATE reconciler.ledger l SET state = 'pending', held_by = NULL, next_attempt_at = clock_timestamp() + patience,
        attempts = CASE WHEN fresh THEN 0 ELSE l.attempts END, failed_hash = CASE WHEN fresh THEN NULL ELSE l.failed_hash END
    FROM reconciler.tasks k
    WHERE k.operation_id = let_go.operation_id AND k.governs AND l.target_id = k.target_id AND l.resource_id = k.resource_id AND l.key = k.key
      -- As text, of which the planner knows nothing: it would look at all that is not applied for each.
      AND (l.state::text = 'held' AND l.held_by = 'gate' OR fresh AND l.state::text IN ('failing', 'blocked'));
END
$$;

-- confirm_stops is how an owner says that no call of these operations is under way any more. It waits as long as settle_tasks.
CREATE FUNCTION reconciler.confirm_stops(target_id integer, owner uuid, term bigint, operation_ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    apply_ids bigint[] := ARRAY(SELECT DISTINCT o.apply_id FROM reconciler.operations o WHERE o.id = ANY (confirm_stops.operation_ids) ORDER BY 1);
    one bigint;
BEGIN
    PERFORM reconciler.fence(confirm_stops.target_id, confirm_stops.owner, confirm_stops.term);
    PERFORM FROM reconciler.applies a WHERE a.id = ANY (apply_ids) ORDER BY a.id FOR NO KEY UPDATE;
    UPDATE reconciler.operations o SET state = 'stopped' WHERE o.id = ANY (confirm_stops.operation_ids) AND o.target_id = confirm_stops.target_id AND o.state = 'stopping';
    FOREACH one IN ARRAY apply_ids LOOP
        PERFORM reconciler.refresh_apply(one);
    END LOOP;
END
$$;

-- record_health records what a target said of its health, and when it was asked. It tells the others if an apply may go
-- on for that.
CREATE FUNCTION reconciler.record_health(target_id integer, owner uuid, term bigint, asked_at timestamptz, unhealthy text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    was reconciler.targets;
BEGIN
    PERFORM reconciler.fence(record_health.target_id, record_health.owner, record_health.term);
    SELECT * INTO was FROM reconciler.targets t WHERE t.id = record_health.target_id;
    UPDATE reconciler.targets t SET health_asked_at = record_health.asked_at, unhealthy = record_health.unhealthy WHERE t.id = record_health.target_id;
    IF record_health.unhealthy IS NULL AND (was.unhealthy IS NOT NULL OR EXISTS (SELECT FROM reconciler.health_waits(record_health.target_id) AS w
            WHERE w.after > coalesce(was.health_asked_at, '-infinity') AND w.after <= record_health.asked_at)) THEN
        PERFORM pg_notify('reconciler_turn', '');
    END IF;
END
$$;

-- settle_tasks records what came of looks at objects that a task governs, in the statement of settle(). Verdicts: done,
-- failed (a terminal error), attempt (it failed and will be tried again; the last one of the budget is failed). Only what
-- is still pending counts, so that a call that was made again after a crash is charged once. specs are hashes of what was
-- looked at, empty for a delete. An object that has failed and is applied with another spec than it failed with is
-- superseded: its row was changed since. It returns how many are completed and how many have failed by that. Lookups by
-- key, because young tables have no statistics. The lock timeout is short: an open transaction may lock the apply, and
-- the target waits for this function.
CREATE FUNCTION reconciler.settle_tasks(target_id integer, owner uuid, term bigint, operation_ids bigint[],
    resource_ids integer[], keys text[], verdicts text[], errors text[], specs bytea[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' SET enable_seqscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    apply_ids bigint[];
    news      record;
    followed  boolean := false;
    one       bigint;
BEGIN
    PERFORM reconciler.fence(settle_tasks.target_id, settle_tasks.owner, settle_tasks.term);
    apply_ids := ARRAY(SELECT DISTINCT o.apply_id FROM reconciler.operations o WHERE o.id = ANY (settle_tasks.operation_ids) ORDER BY 1);
    PERFORM FROM reconciler.applies a WHERE a.id = ANY (apply_ids) ORDER BY a.id FOR NO KEY UPDATE;
    WITH written AS (
        UPDATE reconciler.tasks k SET
            attempts = k.attempts + CASE WHEN n.verdict = 'done' OR n.was = 'failed' THEN 0 ELSE 1 END,
            state = CASE
                WHEN n.verdict = 'done' AND n.tried <> n.spec THEN 'superseded'
                WHEN n.was = 'failed' THEN 'failed'
                WHEN n.verdict = 'done' THEN 'completed'
                WHEN n.verdict = 'failed' OR k.attempts + 1 >= n.budget THEN 'failed'
                ELSE 'pending' END,
            -- What has failed goes on being tried, and may be superseded by that.
            governs = n.verdict <> 'done' AND n.tracked,
            settled_at = CASE WHEN n.verdict <> 'attempt' OR k.attempts + 1 >= n.budget
                THEN coalesce(k.settled_at, clock_timestamp()) END,
            error = CASE
                WHEN n.was = 'failed' OR n.verdict = 'done' AND n.tried <> n.spec THEN k.error
                WHEN n.verdict <> 'done' THEN nullif(n.error, '') END,
            tried = CASE WHEN n.verdict = 'done' THEN k.tried ELSE coalesce(k.tried, n.spec, '') END
        FROM (SELECT s.*, o.budget, w.state AS was, w.tried,
                  EXISTS (SELECT FROM reconciler.resources r WHERE r.id = s.resource_id) AS tracked
              FROM unnest(settle_tasks.operation_ids, settle_tasks.resource_ids, settle_tasks.keys, settle_tasks.verdicts,
                  settle_tasks.errors, settle_tasks.specs) AS s(operation_id, resource_id, key, verdict, error, spec)
              JOIN reconciler.operations o ON o.id = s.operation_id AND o.target_id = settle_tasks.target_id
              JOIN reconciler.tasks w
                  ON w.operation_id = s.operation_id AND w.resource_id = s.resource_id AND w.key = s.key) AS n
        WHERE k.operation_id = n.operation_id AND k.resource_id = n.resource_id AND k.key = n.key
          AND (k.state = 'pending' OR k.state = 'failed' AND k.governs AND (n.verdict = 'done' OR NOT n.tracked))
        RETURNING k.operation_id, k.state, k.error, k.key, n.was
    ), counted AS (
        UPDATE reconciler.operations o SET
            completed = o.completed + w.completed,
            failed = o.failed + w.failed - w.overtaken,
            superseded = o.superseded + w.superseded,
            error = CASE o.state WHEN 'halted' THEN coalesce(w.error, o.error) ELSE coalesce(o.error, w.error) END,
            state = CASE WHEN o.state = 'failed' AND o.failed = w.overtaken THEN 'superseded' ELSE o.state END
        FROM (SELECT x.operation_id, count(*) FILTER (WHERE x.state = 'completed') AS completed,
                  count(*) FILTER (WHERE x.state = 'failed' AND x.was = 'pending') AS failed,
                  count(*) FILTER (WHERE x.state = 'superseded') AS superseded,
                  count(*) FILTER (WHERE x.state = 'superseded' AND x.was = 'failed') AS overtaken,
                  (array_agg(format('%s: %s', x.key, coalesce(x.error, 'no reason known')) ORDER BY x.key)
                      FILTER (WHERE x.state = 'failed'))[1] AS error
              FROM written x GROUP BY 1) AS w
        WHERE o.id = w.operation_id
        RETURNING w.completed AS fresh, w.failed AS lost,
            o.tasks - o.completed - o.failed - o.superseded - o.cancelled AS pending
    )
    SELECT coalesce(sum(c.fresh), 0)::bigint AS completed, coalesce(sum(c.lost), 0)::bigint AS failed, coalesce(bool_or(c.pending = 0), false) AS settled INTO news FROM counted c;
    -- What was cancelled and let go has followed its row now.
    IF EXISTS (SELECT FROM reconciler.operations o WHERE o.id = ANY (settle_tasks.operation_ids) AND o.cancelled > 0) THEN
        UPDATE reconciler.tasks k SET governs = false
        FROM unnest(settle_tasks.operation_ids, settle_tasks.resource_ids, settle_tasks.keys, settle_tasks.verdicts) AS n(operation_id, resource_id, key, verdict)
        WHERE k.operation_id = n.operation_id AND k.resource_id = n.resource_id AND k.key = n.key AND k.state = 'cancelled' AND k.governs AND n.verdict <> 'attempt';
        followed := FOUND;
    END IF;
    IF followed OR news.settled THEN
        PERFORM reconciler.settle_operations(ARRAY(SELECT DISTINCT x FROM unnest(settle_tasks.operation_ids) AS x));
    END IF;
    IF news.failed > 0 OR news.settled THEN
        FOREACH one IN ARRAY apply_ids LOOP
            PERFORM reconciler.refresh_apply(one);
        END LOOP;
    END IF;
    RETURN ARRAY[news.completed, news.failed];
END
$$;

-- forget_applies removes applies that ended so long ago and hold nothing, a few at once, and says how many.
CREATE FUNCTION reconciler.forget_applies(older_than interval, most integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n integer;
BEGIN
    DELETE FROM reconciler.applies a WHERE a.id IN (
        SELECT x.id FROM reconciler.applies x WHERE x.completed_at < clock_timestamp() - older_than AND NOT EXISTS (SELECT FROM reconciler.operations o WHERE o.apply_id = x.id AND NOT o.done)
        ORDER BY x.completed_at LIMIT most FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END
$$;

-- clamp_times sets times in the future to now: they were written before the server's clock was set back, and rollouts, syncs and
-- guards would wait until then. Answers about health of that time are forgotten.
CREATE FUNCTION reconciler.clamp_times() RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    UPDATE reconciler.targets t
    SET lost_at = least(t.lost_at, now),
        health_asked_at = CASE WHEN t.health_asked_at <= now THEN t.health_asked_at END,
        unhealthy = CASE WHEN t.health_asked_at <= now THEN t.unhealthy END
    FROM clock_timestamp() AS now
    WHERE t.lost_at > now OR t.health_asked_at > now;
    UPDATE reconciler.guard_passes p SET at = now, until = now + (p.until - p.at)
    FROM clock_timestamp() AS now
    WHERE p.at > now;
    UPDATE reconciler.applies a SET resumed_at = now
    FROM clock_timestamp() AS now
    WHERE a.completed_at IS NULL AND a.resumed_at > now;
    UPDATE reconciler.operations o
    SET completed_at = least(o.completed_at, now),
        health_asked_at = CASE WHEN o.health_asked_at <= now THEN o.health_asked_at END,
        unhealthy = CASE WHEN o.health_asked_at <= now THEN o.unhealthy END
    FROM reconciler.applies a, clock_timestamp() AS now
    WHERE a.completed_at IS NULL AND o.apply_id = a.id AND (o.completed_at > now OR o.health_asked_at > now)
$$;

-- leave_applies: a target that is forgotten takes no part in applies any more.
CREATE FUNCTION reconciler.leave_applies() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    apply_ids bigint[] := ARRAY(SELECT DISTINCT o.apply_id FROM reconciler.operations o WHERE o.target_id = OLD.id AND NOT o.done ORDER BY 1);
    one bigint;
BEGIN
    PERFORM FROM reconciler.applies a WHERE a.id = ANY (apply_ids) ORDER BY a.id FOR NO KEY UPDATE;
    UPDATE reconciler.tasks k SET governs = false, state = CASE k.state WHEN 'pending' THEN 'cancelled' ELSE k.state END, settled_at = coalesce(k.settled_at, clock_timestamp())
    FROM reconciler.operations o WHERE o.target_id = OLD.id AND NOT o.done AND k.operation_id = o.id AND k.governs;
    UPDATE reconciler.operations o SET state = CASE WHEN o.completed_at IS NULL THEN 'cancelled' ELSE o.state END, is_open = false, done = true,
        completed_at = coalesce(o.completed_at, clock_timestamp()), error = coalesce(o.error, 'its target was forgotten'),
        cancelled = o.tasks - o.completed - o.failed - o.superseded
    WHERE o.target_id = OLD.id AND NOT o.done;
    FOREACH one IN ARRAY apply_ids LOOP
        PERFORM reconciler.note_apply(one, 'target', 'it was forgotten', target => OLD.name);
        PERFORM reconciler.refresh_apply(one);
    END LOOP;
    RETURN OLD;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER leave_applies BEFORE DELETE ON reconciler.targets FOR EACH ROW EXECUTE FUNCTION reconciler.leave_applies();
COMMENT ON FUNCTION reconciler.apply_objects IS 'Internal: the objects that outbox rows of an apply name.';
COMMENT ON FUNCTION reconciler.unopened_applies IS 'Internal: applies that are not open yet.';
COMMENT ON FUNCTION reconciler.unopened_keys IS 'Internal: objects of a resource that applies have changed which are not open yet; NULL: perhaps all.';
COMMENT ON FUNCTION reconciler.open_applies IS 'Internal: the leader opens several applies.';
COMMENT ON FUNCTION reconciler.open_apply IS 'Internal: the leader writes down operations and tasks of an apply.';
COMMENT ON FUNCTION reconciler.supersede IS 'Internal: takes objects from older applies.';
COMMENT ON FUNCTION reconciler.fail_apply IS 'Internal: gives up an apply that cannot be opened.';
COMMENT ON FUNCTION reconciler.turns IS 'Internal: targets of a process that may have something to do for an apply.';
COMMENT ON FUNCTION reconciler.claim_operations IS 'Internal: an owner opens the gates whose turn has come.';
COMMENT ON FUNCTION reconciler.let_go IS 'Internal: ends the hold of an operation''s objects.';
COMMENT ON FUNCTION reconciler.confirm_stops IS 'Internal: an owner says that nothing of an operation is under way any more.';
COMMENT ON FUNCTION reconciler.record_health IS 'Internal: an owner records whether its target is healthy.';
COMMENT ON FUNCTION reconciler.forget_applies IS 'Internal: removes applies that ended long ago.';
COMMENT ON FUNCTION reconciler.clamp_times IS 'Internal: sets times that were written before the server''s clock was set back to now.';
COMMENT ON FUNCTION reconciler.settle_tasks IS 'Internal: an owner records what came of objects of an apply.';

-- Commands. They take the apply's row and no target's: an order does not stand behind a busy target.
-- +goose StatementBegin
-- named_apply returns an apply, locked, or says which there are.
CREATE FUNCTION reconciler.named_apply(apply_id bigint) RETURNS reconciler.applies
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a reconciler.applies;
BEGIN
    PERFORM reconciler.raise_sequences(); -- for the log
    SELECT * INTO a FROM reconciler.applies x WHERE x.id = named_apply.apply_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no apply %', coalesce(named_apply.apply_id::text, 'NULL') USING ERRCODE = 'undefined_object',
            HINT = coalesce((SELECT 'The newest: ' || string_agg(format('%s (%s)', n.id, n.title), ', ' ORDER BY n.id DESC) FROM (SELECT x.id, x.title FROM reconciler.applies x ORDER BY x.id DESC LIMIT 5) AS n),
                'There is none yet: SELECT reconciler.begin_apply(...) in a transaction makes one of its changes.');
    END IF;
    RETURN a;
END
$$;

-- refuse_apply says that a command does not fit the state of an apply, and what would work.
CREATE FUNCTION reconciler.refuse_apply(a reconciler.applies, what text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'apply % is %, so it cannot be %', a.id, reconciler.apply_state_text(a), what USING ERRCODE = 'object_not_in_prerequisite_state', HINT = reconciler.apply_next(a);
END
$$;

-- apply_state_text is the state in words: a wish that the state does not show yet is said as well.
CREATE FUNCTION reconciler.apply_state_text(a reconciler.applies) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.state || CASE WHEN a.wish = 'cancel' AND a.completed_at IS NULL THEN ' (being cancelled)' WHEN a.wish = 'pause' AND a.state <> 'paused' AND a.completed_at IS NULL THEN ' (to be paused)'
        WHEN a.wish = 'stop' AND a.state NOT IN ('stopping', 'stopped') AND a.completed_at IS NULL THEN ' (to be stopped)' ELSE '' END
$$;

CREATE FUNCTION reconciler.counted_in(objects bigint, targets bigint) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%s in %s', reconciler.counted(objects, 'object'), reconciler.counted(targets, 'target'))
$$;

-- apply_holds says how many objects an apply that has ended goes on holding, and as text in how many targets; 0 and NULL
-- for none.
CREATE FUNCTION reconciler.apply_holds(apply_id bigint, OUT objects bigint, OUT text text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT h.objects, CASE WHEN h.objects > 0 THEN reconciler.counted_in(h.objects, h.targets) END
    FROM (SELECT coalesce(sum(o.tasks - o.completed - o.failed - o.superseded), 0)::bigint AS objects, count(*) AS targets
          FROM reconciler.operations o WHERE o.apply_id = apply_holds.apply_id
              AND o.state IN ('halted', 'cancelled') AND NOT o.is_open AND NOT o.done) AS h
$$;

-- apply_waiting says as text how many objects, in how many targets, stand behind something that has failed.
CREATE FUNCTION reconciler.apply_waiting(apply_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT reconciler.counted_in(w.objects, w.targets)
    FROM (SELECT sum(o.tasks - o.completed - o.failed - o.superseded - o.cancelled)::bigint AS objects, count(*) AS targets
          FROM reconciler.operations o WHERE o.apply_id = apply_waiting.apply_id
              AND o.state IN ('pending', 'halted') AND NOT o.unproven) AS w WHERE w.targets > 0
$$;

-- apply_mends is how to try again what failed; NULL if there is nothing that could be: its rows were changed since, its
-- target was forgotten, or no call can be made for it.
CREATE FUNCTION reconciler.apply_mends(a reconciler.applies) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'Mend it, then try what failed again: ' || reconciler.apply_call('retry', a.id)
    WHERE a.wish IN ('run', 'pause') AND EXISTS (
        SELECT FROM reconciler.operations o
        WHERE o.apply_id = a.id AND o.target_id IS NOT NULL AND o.failed > 0 AND o.state IN ('failed', 'running') AND EXISTS (
            SELECT FROM reconciler.tasks k WHERE k.operation_id = o.id AND k.state = 'failed' AND k.tried IS NOT NULL))
$$;

-- apply_next is the one thing to do next about an apply. What it proposes starts no more than it says: a release that
-- failed must not reach other targets because somebody has copied a hint.
CREATE FUNCTION reconciler.apply_next(a reconciler.applies) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    holds record;
    mends text;
    one   record;
BEGIN
    IF a.completed_at IS NOT NULL AND a.opened_at IS NOT NULL THEN
        SELECT * INTO holds FROM reconciler.apply_holds(a.id);
        mends := CASE WHEN a.state = 'failed' THEN reconciler.apply_mends(a) END;
        RETURN concat_ws(' ', CASE
                WHEN a.state = 'completed' THEN 'Nothing: it is everywhere.'
                WHEN a.state = 'superseded' THEN (
                    SELECT format('Nothing: newer changes have taken %s of its %s.', sum(o.superseded),
                        reconciler.counted(sum(o.tasks)::bigint, 'object'))
                    FROM reconciler.operations o WHERE o.apply_id = a.id)
                WHEN mends IS NULL THEN 'Nothing more comes of it.'
                ELSE concat_ws(' ', mends, 'When that succeeds it goes on with ' || reconciler.apply_waiting(a.id) || '.',
                    'Or correct the rows, as a new apply.') END,
            CASE WHEN holds.objects > 0 THEN format('%s %s: %s', holds.text, CASE WHEN holds.objects = 1
                THEN 'keeps what the target has; to let it follow its row'
                ELSE 'keep what the targets have; to let them follow their rows' END, reconciler.apply_call('release', a.id)) END);
    END IF;
    IF a.wish = 'stop' THEN
        RETURN 'To go on: ' || reconciler.apply_call('start', a.id);
    ELSIF a.state = 'paused' AND a.error_message IS NOT NULL THEN
        RETURN concat_ws(' ', reconciler.apply_mends(a), format('To go on%s in spite of that: %s',
            ' with ' || reconciler.apply_waiting(a.id), reconciler.apply_call('release', a.id)));
    ELSIF a.state = 'paused' OR a.wish = 'pause' THEN
        RETURN 'To go on: ' || reconciler.apply_call('release', a.id);
    ELSIF a.wish = 'cancel' THEN
        RETURN 'It ends when calls that are on their way have ended.';
    ELSIF a.opened_at IS NULL THEN
        RETURN concat_ws(' ', 'Wait: the leader is writing down its objects.', reconciler.leader_text());
    END IF;
    -- The first is chosen before it is asked what it waits for: there may be thousands.
    SELECT (f.o).target, w.phase, w.detail INTO one
    FROM (SELECT o FROM reconciler.operations o WHERE o.apply_id = a.id AND o.completed_at IS NULL ORDER BY o.state <> 'running', o.ordinal, o.target LIMIT 1) AS f
    CROSS JOIN LATERAL reconciler.waiting(a, f.o, reconciler.front(a)) AS w;
    -- What is waited for says itself what it is; how far something is does not.
    RETURN format('Wait: %s: %s%s.', one.target, CASE one.phase WHEN 'running' THEN 'running, ' ELSE '' END, rtrim(one.detail, '.'));
END
$$;

CREATE FUNCTION reconciler.apply_pause(apply bigint, reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a reconciler.applies := reconciler.named_apply(apply);
BEGIN
    IF a.completed_at IS NULL AND a.wish = 'pause' THEN
        RETURN format('apply %s is paused already', a.id);
    ELSIF a.completed_at IS NOT NULL OR a.wish <> 'run' THEN
        PERFORM reconciler.refuse_apply(a, 'paused');
    END IF;
    UPDATE reconciler.applies x SET wish = 'pause' WHERE x.id = a.id;
    PERFORM reconciler.note_apply(a.id, 'pause', reason);
    PERFORM reconciler.refresh_apply(a.id);
    RETURN format('apply %s starts in no further target, until %s', a.id, reconciler.apply_call('release', a.id));
END
$$;

CREATE FUNCTION reconciler.apply_stop(apply bigint, reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a reconciler.applies := reconciler.named_apply(apply);
    state text;
BEGIN
    IF a.completed_at IS NULL AND a.wish = 'stop' THEN
        RETURN format('apply %s is %s already', a.id, CASE a.state WHEN 'stopping' THEN 'stopping' ELSE 'stopped' END);
    ELSIF a.completed_at IS NOT NULL OR a.wish = 'cancel' THEN
        PERFORM reconciler.refuse_apply(a, 'stopped');
    END IF;
    UPDATE reconciler.applies x SET wish = 'stop' WHERE x.id = a.id;
    PERFORM reconciler.close_gates(a.id);
    PERFORM reconciler.note_apply(a.id, 'stop', reason);
    state := reconciler.refresh_apply(a.id);
    RETURN format('apply %s is %s, until %s', a.id, CASE state WHEN 'stopping' THEN 'stopping: calls that are on their way end' ELSE 'stopped' END, reconciler.apply_call('start', a.id));
END
$$;

-- close_gates closes the gates of what runs. The target's owner says when its last call has ended; without an owner there
-- is none: calls end before their lease does.
CREATE FUNCTION reconciler.close_gates(apply_id bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    UPDATE reconciler.operations o SET is_open = false,
        state = CASE WHEN EXISTS (SELECT FROM reconciler.targets t WHERE t.id = o.target_id AND reconciler.lease_lives(t.owner, t.lease_ttl)) THEN 'stopping' ELSE 'stopped' END
    WHERE o.apply_id = close_gates.apply_id AND o.state = 'running'
$$;

CREATE FUNCTION reconciler.apply_start(apply bigint, reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a reconciler.applies := reconciler.named_apply(apply);
BEGIN
    IF a.completed_at IS NULL AND a.wish = 'run' AND a.state <> 'paused' THEN
        RETURN format('apply %s is %s already', a.id, a.state);
    ELSIF a.completed_at IS NOT NULL OR a.wish <> 'stop' THEN
        PERFORM reconciler.refuse_apply(a, 'started');
    END IF;
    UPDATE reconciler.applies x SET wish = 'run', resumed_at = clock_timestamp() WHERE x.id = a.id;
    UPDATE reconciler.operations o SET state = 'running', is_open = true, term = NULL WHERE o.apply_id = a.id AND o.state = 'stopping';
    UPDATE reconciler.operations o SET state = 'pending' WHERE o.apply_id = a.id AND o.state = 'stopped';
    PERFORM reconciler.note_apply(a.id, 'start', reason);
    RETURN format('apply %s goes on, it is %s', a.id, reconciler.refresh_apply(a.id));
END
$$;

-- apply_release lets a paused apply go on; of one that has ended it lets go of the objects that it still holds.
CREATE FUNCTION reconciler.apply_release(apply bigint, reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a     reconciler.applies := reconciler.named_apply(apply);
    holds record;
BEGIN
    IF a.completed_at IS NOT NULL THEN
        SELECT * INTO holds FROM reconciler.apply_holds(a.id);
        IF holds.objects = 0 THEN
            RETURN format('apply %s is %s and holds nothing', a.id, a.state);
        END IF;
        UPDATE reconciler.operations o SET is_open = true, term = NULL WHERE o.apply_id = a.id AND o.state IN ('halted', 'cancelled') AND NOT o.done;
        PERFORM reconciler.note_apply(a.id, 'release', reason);
        PERFORM pg_notify('reconciler_turn', '');
        RETURN format('%s of apply %s %s rows again', holds.text, a.id,
            CASE WHEN holds.objects = 1 THEN 'follows its' ELSE 'follow their' END);
    ELSIF a.wish IN ('stop', 'cancel') THEN
        PERFORM reconciler.refuse_apply(a, 'released');
    ELSIF a.wish = 'run' AND a.state <> 'paused' THEN
        RETURN format('apply %s is %s, and nothing pauses it', a.id, a.state);
    END IF;
    -- Whoever lets a paused one go on has seen what failed.
    UPDATE reconciler.applies x SET wish = 'run', released = x.released OR x.state = 'paused' AND x.error_message IS NOT NULL, resumed_at = clock_timestamp() WHERE x.id = a.id;
    PERFORM reconciler.note_apply(a.id, 'release', reason);
    RETURN format('apply %s goes on, it is %s', a.id, reconciler.refresh_apply(a.id));
END
$$;

-- apply_cancel ends an apply for good. What it has not reached keeps what it has: nothing rolls out because somebody gave up.
CREATE FUNCTION reconciler.apply_cancel(apply bigint, reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a     reconciler.applies := reconciler.named_apply(apply);
    state text;
    holds text;
BEGIN
    IF a.wish = 'cancel' THEN
        RETURN format('apply %s is cancelled already', a.id);
    ELSIF a.completed_at IS NOT NULL THEN
        PERFORM reconciler.refuse_apply(a, 'cancelled');
    END IF;
    UPDATE reconciler.applies x SET wish = 'cancel' WHERE x.id = a.id;
    PERFORM reconciler.close_gates(a.id);
    PERFORM reconciler.note_apply(a.id, 'cancel', reason);
    state := reconciler.refresh_apply(a.id);
    holds := (reconciler.apply_holds(a.id)).text;
    RETURN format('apply %s is %s', a.id, CASE state WHEN 'stopping' THEN 'cancelled as soon as calls that are on their way have ended' ELSE 'cancelled' END)
        || CASE WHEN holds IS NULL THEN ''
            ELSE format('; %s not reached, until %s', holds, reconciler.apply_call('release', a.id)) END;
END
$$;

-- apply_retry tries again what failed, in one target or all, with a fresh budget; what a halt kept from starting gets its
-- turn when the same has been applied. An object that a newer apply has by now is that one's.
CREATE FUNCTION reconciler.apply_retry(apply bigint, target text DEFAULT NULL, reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone CONSTANT text :=
        'nothing of apply %s can be tried again%s: its rows were changed since, or no call can be made for it';
    a     reconciler.applies;
    ids   bigint[];
    n     bigint;
    state text;
BEGIN
    a := reconciler.named_apply(apply);
    IF apply_retry.target IS NOT NULL AND NOT EXISTS (SELECT FROM reconciler.operations o WHERE o.apply_id = a.id AND o.target = apply_retry.target) THEN
        RAISE EXCEPTION 'apply % has nothing to do with target %', a.id, quote_literal(apply_retry.target) USING ERRCODE = 'undefined_object',
            HINT = 'Its targets: ' || coalesce((SELECT string_agg(o.target, ', ' ORDER BY o.ordinal, o.target) FROM reconciler.operations o WHERE o.apply_id = a.id), 'none');
    ELSIF a.wish IN ('stop', 'cancel') OR a.state IN ('completed', 'superseded', 'cancelled') THEN
        PERFORM reconciler.refuse_apply(a, 'tried again');
    END IF;
    ids := ARRAY(SELECT o.id FROM reconciler.operations o WHERE o.apply_id = a.id AND o.target_id IS NOT NULL
        AND o.failed > 0 AND o.state IN ('failed', 'running') AND (apply_retry.target IS NULL OR o.target = apply_retry.target));
    IF ids = '{}' THEN
        RETURN format(CASE WHEN EXISTS (SELECT FROM reconciler.operations o WHERE o.apply_id = a.id AND o.unproven
                AND (apply_retry.target IS NULL OR o.target = apply_retry.target))
            THEN gone ELSE 'nothing of apply %s has failed%s' END, a.id, ' in ' || apply_retry.target);
    END IF;
    -- The leader may open an apply at this moment that has the same objects. Its tasks are not seen before they are committed,
    -- and the index of what governs an object lets only one of both: then look again.
    FOR look IN 1..10 LOOP
        BEGIN
            WITH again AS (
                UPDATE reconciler.tasks k SET attempts = 0, state = CASE WHEN newer.found THEN 'superseded' ELSE 'pending' END, governs = NOT newer.found,
                    settled_at = CASE WHEN newer.found THEN k.settled_at END
                FROM (SELECT f.operation_id, f.resource_id, f.key, EXISTS (SELECT FROM reconciler.tasks g WHERE g.target_id = f.target_id AND g.resource_id = f.resource_id AND g.key = f.key AND g.seq > f.seq) AS found
                      FROM reconciler.tasks f WHERE f.operation_id = ANY (ids) AND f.state = 'failed' AND f.tried IS NOT NULL) AS newer
                WHERE k.operation_id = newer.operation_id AND k.resource_id = newer.resource_id AND k.key = newer.key
                RETURNING k.operation_id, k.state
            ), counted AS (
                SELECT g.operation_id, count(*) AS n, count(*) FILTER (WHERE g.state = 'superseded') AS superseded FROM again g GROUP BY 1
            ), written AS (
                UPDATE reconciler.operations o SET failed = o.failed - c.n, superseded = o.superseded + c.superseded,
                    error = CASE WHEN o.failed > c.n THEN o.error END,
                    state = CASE o.state WHEN 'failed' THEN 'pending' ELSE o.state END, is_open = o.state = 'running', term = NULL, done = false, xid = pg_current_xact_id(), completed_at = NULL
                FROM counted c WHERE o.id = c.operation_id RETURNING c.n - c.superseded AS n
            )
            SELECT coalesce(sum(w.n), 0) INTO n FROM written w;
            EXIT;
        EXCEPTION WHEN unique_violation THEN
            IF look = 10 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
    UPDATE reconciler.applies x SET resumed_at = clock_timestamp() WHERE x.id = a.id;
    PERFORM reconciler.note_apply(a.id, 'retry', reason, target => apply_retry.target);
    PERFORM reconciler.settle_operations(ARRAY(SELECT o.id FROM reconciler.operations o WHERE o.apply_id = a.id));
    state := reconciler.refresh_apply(a.id);
    RETURN CASE WHEN n = 0 THEN format(gone, a.id, ' in ' || apply_retry.target)
        ELSE format('%s of apply %s to be tried again, it is %s', reconciler.counted(n, 'object'), a.id, state) END;
END
$$;

-- apply_wait returns when the apply has ended, when only a person can make it go on, or at the timeout.
CREATE FUNCTION reconciler.apply_wait(apply bigint, timeout interval DEFAULT '30 seconds') RETURNS TABLE (state text, error text, next text, timed_out boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + coalesce(timeout, interval '30 seconds');
    a reconciler.applies;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'apply_wait() sees nothing new in a % transaction, so it would wait in vain', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call it by itself, without BEGIN.';
    END IF;
    LOOP
        SELECT * INTO a FROM reconciler.applies x WHERE x.id = apply_wait.apply;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no apply %', coalesce(apply_wait.apply::text, 'NULL') USING ERRCODE = 'undefined_object';
        END IF;
        timed_out := a.completed_at IS NULL AND a.state NOT IN ('paused', 'stopped');
        EXIT WHEN NOT timed_out OR clock_timestamp() >= deadline;
        PERFORM pg_sleep(least(0.02, extract(epoch FROM deadline - clock_timestamp())));
    END LOOP;
    state := a.state; error := a.error_message; next := reconciler.apply_next(a);
    RETURN NEXT;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.named_apply IS 'Internal: an apply by its number, locked; the error names the newest.';
COMMENT ON FUNCTION reconciler.refuse_apply IS 'Internal: refuses a command, and says what would work.';
COMMENT ON FUNCTION reconciler.apply_state_text IS 'Internal: the state of an apply in words.';
COMMENT ON FUNCTION reconciler.apply_holds IS 'Internal: how many objects an apply that has ended holds.';
COMMENT ON FUNCTION reconciler.apply_waiting IS 'Internal: how much of an apply stands behind something that has failed.';
COMMENT ON FUNCTION reconciler.counted_in IS 'Internal: a number of objects and targets.';
COMMENT ON FUNCTION reconciler.apply_mends IS 'Internal: how to try again what failed of an apply.';
COMMENT ON FUNCTION reconciler.apply_next IS 'Internal: what to do next about an apply.';
COMMENT ON FUNCTION reconciler.close_gates IS 'Internal: closes the gates of running operations.';
COMMENT ON FUNCTION reconciler.apply_pause IS 'Has an apply start in no further target until apply_release(). What runs ends.';
COMMENT ON FUNCTION reconciler.apply_stop IS 'Stops an apply, also where it runs: calls that are on their way end, no other begins, until apply_start().';
COMMENT ON FUNCTION reconciler.apply_start IS 'Ends apply_stop().';
COMMENT ON FUNCTION reconciler.apply_release IS 'Lets a paused apply go on. One that failed or was cancelled it makes let go of the objects that it still holds.';
COMMENT ON FUNCTION reconciler.apply_cancel IS 'Ends an apply for good. Objects that it has not reached keep what they have until apply_release() or a newer apply.';
COMMENT ON FUNCTION reconciler.apply_retry IS 'Tries again what failed of an apply, in one target or all, with fresh attempts; what a halt kept from starting gets its turn when that succeeds.';
COMMENT ON FUNCTION reconciler.apply_wait IS 'Returns one row as soon as an apply has ended, or only a person can make it go on; else at the timeout.';

CREATE VIEW reconciler.apply_status AS
SELECT a.id, a.title, a.state, a.strategy, a.on_failure, n.targets, n.targets_done, n.tasks, n.completed, n.failed, n.superseded,
    n.tasks - n.completed - n.failed - n.superseded - n.cancelled AS pending, a.error_message AS error, reconciler.apply_next(a) AS next,
    a.created_by, a.created_at, a.started_at, a.completed_at, a.labels, a.version
FROM reconciler.applies a CROSS JOIN LATERAL (
    SELECT count(*) AS targets, count(*) FILTER (WHERE o.completed_at IS NOT NULL) AS targets_done, coalesce(sum(o.tasks), 0)::bigint AS tasks, coalesce(sum(o.completed), 0)::bigint AS completed,
        coalesce(sum(o.failed), 0)::bigint AS failed, coalesce(sum(o.superseded), 0)::bigint AS superseded, coalesce(sum(o.cancelled), 0)::bigint AS cancelled
    FROM reconciler.operations o WHERE o.apply_id = a.id) AS n;
COMMENT ON VIEW reconciler.apply_status IS 'One row for each apply: is it out, where not, and what to do next.';
COMMENT ON COLUMN reconciler.apply_status.state IS 'pending, running, degraded (running, and something has failed), paused (waits for a person), stopping, stopped, completed (every object was applied), superseded (newer changes took objects of it), failed, cancelled.';
COMMENT ON COLUMN reconciler.apply_status.targets_done IS 'Targets where nothing more comes of it.';
COMMENT ON COLUMN reconciler.apply_status.tasks IS 'Objects in all targets.';
COMMENT ON COLUMN reconciler.apply_status.error IS 'The first target in order that failed, and why.';
COMMENT ON COLUMN reconciler.apply_status.version IS 'Grows with each change of state and each command.';

CREATE VIEW reconciler.apply_targets AS
SELECT a.id AS apply, o.target, o.ordinal, o.state, w.phase, w.detail, w.until, o.tasks, o.completed, o.failed, o.superseded,
    o.tasks - o.completed - o.failed - o.superseded - o.cancelled AS pending, o.claims, o.started_at, o.completed_at
FROM reconciler.applies a CROSS JOIN LATERAL (SELECT reconciler.front(a) AS front OFFSET 0) AS f
JOIN reconciler.operations o ON o.apply_id = a.id CROSS JOIN LATERAL reconciler.waiting(a, o, f.front) AS w;
COMMENT ON VIEW reconciler.apply_targets IS 'Applies by target: how far each is, and what it waits for.';
COMMENT ON COLUMN reconciler.apply_targets.ordinal IS 'Place in the order of the rollout; those of one wave have the same.';
COMMENT ON COLUMN reconciler.apply_targets.phase IS 'Like state, more exactly: opening, waiting, soaking, paused or next for a pending one, retrying for one that runs and has only failing objects left.';
COMMENT ON COLUMN reconciler.apply_targets.until IS 'When it goes on by itself.';

CREATE VIEW reconciler.apply_tasks AS
SELECT o.apply_id AS apply, o.target, r.name AS resource, k.key, k.state, k.attempts, k.error, k.revision, k.settled_at, k.governs AND NOT o.is_open AS held
FROM reconciler.tasks k JOIN reconciler.operations o ON o.id = k.operation_id LEFT JOIN reconciler.resources r ON r.id = k.resource_id;
COMMENT ON VIEW reconciler.apply_tasks IS 'Applies by object.';
COMMENT ON COLUMN reconciler.apply_tasks.state IS 'pending, completed, failed (a terminal error, or too many attempts), superseded (a newer apply changed the object, or its row was changed after it had failed), cancelled.';
COMMENT ON COLUMN reconciler.apply_tasks.held IS 'The object keeps what it has while its target waits for its turn.';

-- +goose StatementBegin
-- gate_text says which apply holds an object.
CREATE OR REPLACE FUNCTION reconciler.gate_text(l reconciler.ledger) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((SELECT CASE WHEN a.completed_at IS NULL THEN format('waits for its turn in apply %s (%s)', a.id, a.title)
            ELSE format('apply %s (%s) is %s and had not reached it; %s', a.id, a.title, a.state, reconciler.apply_call('release', a.id)) END
        FROM reconciler.tasks k JOIN reconciler.operations o ON o.id = k.operation_id JOIN reconciler.applies a ON a.id = o.apply_id
        WHERE k.target_id = l.target_id AND k.resource_id = l.resource_id AND k.key = l.key AND k.governs), 'waits for its turn in a rollout')
$$;

-- gate_moves says whether an object that an apply holds may be let go without a person.
CREATE OR REPLACE FUNCTION reconciler.gate_moves(l reconciler.ledger) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM reconciler.tasks k JOIN reconciler.operations o ON o.id = k.operation_id JOIN reconciler.applies a ON a.id = o.apply_id
        WHERE k.target_id = l.target_id AND k.resource_id = l.resource_id AND k.key = l.key AND k.governs AND NOT o.is_open
          AND (a.completed_at IS NOT NULL OR a.state IN ('paused', 'stopped')));
END
$$;
-- +goose StatementEnd

-- Functions are for the roles that grant() names, not for everybody.
SELECT reconciler.regrant();

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION reconciler.gate_text(l reconciler.ledger) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT 'waits for its turn in a rollout' $$;

CREATE OR REPLACE FUNCTION reconciler.gate_moves(l reconciler.ledger) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT true $$;
-- +goose StatementEnd
-- Triggers must not call what is gone.
UPDATE reconciler.resources SET rollout = NULL WHERE rollout IS NOT NULL RETURNING reconciler.install_functions(resources);
-- What applies held follows its rows again.
UPDATE reconciler.ledger SET state = 'pending', held_by = NULL, next_attempt_at = clock_timestamp() WHERE state = 'held' AND held_by = 'gate';
DROP VIEW reconciler.apply_tasks, reconciler.apply_targets, reconciler.apply_status;
DROP TRIGGER leave_applies ON reconciler.targets;
DROP FUNCTION reconciler.apply_wait, reconciler.apply_retry, reconciler.apply_cancel, reconciler.apply_release, reconciler.apply_start, reconciler.close_gates,
    reconciler.apply_stop, reconciler.apply_pause, reconciler.apply_next, reconciler.apply_mends, reconciler.apply_waiting, reconciler.apply_holds, reconciler.counted_in, reconciler.apply_state_text, reconciler.refuse_apply, reconciler.named_apply,
    reconciler.leave_applies, reconciler.clamp_times, reconciler.forget_applies, reconciler.record_health, reconciler.settle_tasks, reconciler.confirm_stops, reconciler.let_go, reconciler.claim_operations, reconciler.turns, reconciler.fail_apply, reconciler.supersede,
    reconciler.unopened_keys, reconciler.unopened_applies, reconciler.open_applies, reconciler.open_apply, reconciler.apply_objects, reconciler.settle_operations, reconciler.tell_state, reconciler.refresh_apply, reconciler.note_apply, reconciler.apply_call,
    reconciler.waiting, reconciler.front, reconciler.health_waits, reconciler.health_ask, reconciler.health_text, reconciler.health_of, reconciler.health_after, reconciler.derive_apply, reconciler.wave_of, reconciler.check_apply, reconciler.wake_leader, reconciler.begin_rollout, reconciler.set_applies, reconciler.begin_resync, reconciler.begin_apply;
DROP TYPE reconciler.apply_front;
DROP TABLE reconciler.apply_events, reconciler.apply_log, reconciler.tasks, reconciler.operations, reconciler.applies;
DROP FUNCTION reconciler.keep_log;
