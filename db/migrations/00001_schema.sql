-- +goose Up

-- The words used here are explained in docs/concepts.md. Everything that a person meets in psql has a comment.
-- IF NOT EXISTS would ask for the right to create one even when it is there.
-- +goose StatementBegin
DO $$
BEGIN
    IF getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION 'the database has encoding %, and only UTF8 can be used', getdatabaseencoding() USING ERRCODE = 'feature_not_supported';
    END IF;
    IF to_regnamespace('reconciler') IS NULL THEN
        CREATE SCHEMA reconciler;
    END IF;
END
$$;
-- +goose StatementEnd
COMMENT ON SCHEMA reconciler IS 'Makes the outside world equal to rows: definitions, outbox, ledger and the functions to steer them.';

CREATE TABLE reconciler.installation (
    singleton         boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    id                uuid NOT NULL DEFAULT gen_random_uuid(),
    system_identifier bigint,
    timeline          bigint,
    database_oid      oid,
    table_oid         oid,
    epoch             integer NOT NULL DEFAULT 0,
    floor_revision    bigint NOT NULL DEFAULT 0,
    adopted_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    rotated_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE reconciler.installation IS 'One row: which database the ticks were made in, and what retention has removed. No command of people holds it.';
COMMENT ON COLUMN reconciler.installation.id IS 'Of this installation; it goes with a dump. Targets that can keep it, with the names of database and database system, know by it whose they are.';
COMMENT ON COLUMN reconciler.installation.table_oid IS 'Of this table when the first ticks were made: a dump that is loaded into the same database makes it anew.';
COMMENT ON COLUMN reconciler.installation.epoch IS 'Grows each time a restore, dump and reload, or failover is noticed.';
COMMENT ON COLUMN reconciler.installation.adopted_at IS 'When this server and database were first seen by a leader, by the clock of this server.';
COMMENT ON COLUMN reconciler.installation.floor_revision IS 'A cursor below this revision has missed outbox rows that retention removed; its target is synced in full.';
INSERT INTO reconciler.installation DEFAULT VALUES;

-- What people set is not in the row that the leader needs: they may leave the transaction in which they set it open.
CREATE TABLE reconciler.settings (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    notify    boolean NOT NULL DEFAULT true
);
COMMENT ON TABLE reconciler.settings IS 'One row: settings of this database that people change.';
COMMENT ON COLUMN reconciler.settings.notify IS 'Whether capture triggers may NOTIFY. Set with reconciler.set_notify().';
INSERT INTO reconciler.settings DEFAULT VALUES;

-- Locks of ours that people's commands hold to the end of their transactions are locks of rows of this table: no other role
-- can take them, as it could take advisory locks. The one advisory lock is sleep_lock().
CREATE TABLE reconciler.locks (
    name    text PRIMARY KEY,
    purpose text NOT NULL
);
COMMENT ON TABLE reconciler.locks IS 'Rows to be locked: one thing at a time.';
INSERT INTO reconciler.locks (name, purpose) VALUES
    ('definitions', 'track(), untrack(), regenerate(), set_notify() and set_applies() generate code of the same rows'),
    ('sequences', 'raise_sequences() sets sequences forward: of two at once, the later one could set one back');

CREATE TABLE reconciler.resources (
    id              integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            text COLLATE "C" NOT NULL UNIQUE
                    CHECK (name ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,47}$' AND name !~ '\.\.'),
    relation        regclass NOT NULL,
    relation_kind   "char" NOT NULL,
    alias           text NOT NULL,
    key_columns     text[] NOT NULL CHECK (cardinality(key_columns) BETWEEN 1 AND 8),
    key_types       regtype[] NOT NULL,
    target          text NOT NULL,
    running         text NOT NULL,
    spec            text,
    ignored         text[] NOT NULL DEFAULT '{}',
    depends_on      jsonb,
    always          boolean NOT NULL DEFAULT false,
    protect         text,
    rollout         jsonb,
    target_bound    text NOT NULL,
    running_bound   text NOT NULL,
    spec_bound      text NOT NULL,
    protect_bound   text NOT NULL DEFAULT 'false',
    match_columns   text[] NOT NULL DEFAULT '{}',
    match_types     regtype[] NOT NULL DEFAULT '{}',
    known_columns   text[] NOT NULL DEFAULT '{}',
    version         integer NOT NULL DEFAULT 1,
    capture_version integer NOT NULL DEFAULT 0,
    removed_at      timestamptz,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (cardinality(key_columns) = cardinality(key_types)),
    CHECK (cardinality(match_columns) = cardinality(match_types))
);
COMMENT ON TABLE reconciler.resources IS 'What is tracked: one row for each reconciler.track(). Change it only through track() and untrack().';
COMMENT ON COLUMN reconciler.resources.alias IS 'Name under which the bound expressions see the row.';
COMMENT ON COLUMN reconciler.resources.rollout IS 'Arguments of begin_apply() for each transaction that changes it; NULL: none is called. See set_applies().';
COMMENT ON COLUMN reconciler.resources.protect IS 'Deletes of objects whose row it is true or NULL for wait for approve(). NULL: it protects none.';
COMMENT ON COLUMN reconciler.resources.target_bound IS 'The target expression as PostgreSQL understood it when track() ran: every name qualified.';
COMMENT ON COLUMN reconciler.resources.match_columns IS 'Columns of the relation that depends_on refers to.';
COMMENT ON COLUMN reconciler.resources.known_columns IS 'Names of the columns of the relation, by number, when the definition was bound. NULL: a dropped column.';;
COMMENT ON COLUMN reconciler.resources.version IS 'Grows with each changed definition.';
COMMENT ON COLUMN reconciler.resources.removed_at IS 'Set by untrack(release => ''delete''): its objects are being deleted, then the row goes.';

CREATE TABLE reconciler.sources (
    resource_id  integer PRIMARY KEY REFERENCES reconciler.resources ON DELETE CASCADE,
    fingerprints jsonb NOT NULL
);
COMMENT ON TABLE reconciler.sources IS 'Fingerprints of the tables, views, functions and types that the rows of each resource are made from. The leader compares them, and has a resource synced when DDL has changed one.';

-- Every table has a primary key: under a publication for all tables, UPDATE and DELETE fail without one. Where no columns are unique it
-- is random, so that no sequence is needed, which may stay behind when rows are moved. The outbox has none: its rows are only added,
-- and leave by TRUNCATE, which publications take; an index more would slow down every writer.
CREATE TABLE reconciler.misfits (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    resource_id integer NOT NULL REFERENCES reconciler.resources ON DELETE CASCADE,
    target      text,
    key         text,
    reason      text NOT NULL,
    found_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX misfits_resource ON reconciler.misfits (resource_id);
COMMENT ON TABLE reconciler.misfits IS 'Running rows that can be no object, a few of each resource: their key is null or too long, or no config can hold the target that they name. Long texts are shortened.';

CREATE TABLE reconciler.dependencies (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    resource_id integer NOT NULL REFERENCES reconciler.resources ON DELETE CASCADE,
    relation    regclass NOT NULL,
    base        text[] NOT NULL CHECK (cardinality(base) > 0),
    columns     text[] NOT NULL,
    watched     text[],
    known_columns text[] NOT NULL DEFAULT '{}',
    CHECK (cardinality(base) = cardinality(columns))
);
CREATE INDEX dependencies_resource ON reconciler.dependencies (resource_id);
COMMENT ON TABLE reconciler.dependencies IS 'Base tables of joined resources: a changed row concerns the objects whose columns equal its base columns.';
COMMENT ON COLUMN reconciler.dependencies.known_columns IS
    'Names of the columns of the base table, by number, when depends_on was read. NULL: a dropped column.';
COMMENT ON COLUMN reconciler.dependencies.watched IS 'Base columns that the resource reads; NULL means all.';

-- The outbox: append-only, four parts that take turns by blocks of seq, so that retention can
-- TRUNCATE a part and leave no dead rows.
CREATE SEQUENCE reconciler.outbox_seq AS bigint CACHE 1;
CREATE TABLE reconciler.outbox (
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq           bigint NOT NULL DEFAULT nextval('reconciler.outbox_seq'),
    resource_id   integer NOT NULL,
    target        text,
    key           text,
    dependency_id integer,
    image         jsonb,
    protect       boolean
) PARTITION BY LIST (((seq >> 20) & 3));
COMMENT ON TABLE reconciler.outbox IS 'One row for each "this object may have changed". A hint, never the truth: the truth is the user''s row.';
COMMENT ON COLUMN reconciler.outbox.xid IS 'Top-level transaction that made the change.';
COMMENT ON COLUMN reconciler.outbox.seq IS 'Taken inside the trigger, so after the row lock. Gaps mean nothing.';
COMMENT ON COLUMN reconciler.outbox.target IS 'NULL means every target.';
COMMENT ON COLUMN reconciler.outbox.key IS 'NULL means the whole resource (TRUNCATE, changed definition), or a row of a base table (then dependency_id is set).';
COMMENT ON COLUMN reconciler.outbox.image IS 'For dependency_id: which columns of the resource had or have which values.';
COMMENT ON COLUMN reconciler.outbox.protect IS 'Whether the row protects the object: where it still asks for it as it is now, else as it was last. NULL: its resource has no protect, or it is not known.';
-- +goose StatementBegin
DO $$
BEGIN
    FOR i IN 0..3 LOOP
        EXECUTE format('CREATE TABLE reconciler.outbox_%s PARTITION OF reconciler.outbox FOR VALUES IN (%s)', i, i);
        -- Rows are never updated and leave by TRUNCATE: vacuum has nothing to do here but wraparound.
        EXECUTE format('ALTER TABLE reconciler.outbox_%s SET (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.5)', i);
    END LOOP;
END
$$;
-- +goose StatementEnd
CREATE INDEX outbox_xid ON reconciler.outbox (xid, seq);
-- For captured_protect(). Changes of resources without protect are not in it.
CREATE INDEX outbox_protect ON reconciler.outbox (resource_id, key COLLATE "C", target COLLATE "C", seq) WHERE protect IS NOT NULL;

CREATE TABLE reconciler.ticks (
    revision bigint PRIMARY KEY,
    snapshot pg_snapshot NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE reconciler.ticks IS 'A revision and the snapshot it stands for. Outbox rows between two ticks are a batch.';

CREATE TABLE reconciler.instances (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    version    text NOT NULL,
    targets    text[] NOT NULL DEFAULT '{}',
    options    text[] NOT NULL DEFAULT '{}',
    started_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE reconciler.instances IS 'Running processes. Another process removes the row of one whose heartbeats have stopped for a minute.';
COMMENT ON COLUMN reconciler.instances.options IS 'Fingerprints of driver and options of each of the targets, in their order.';

CREATE TABLE reconciler.configs (
    instance   uuid PRIMARY KEY, -- no foreign key: the row outlives the process
    source     text NOT NULL,
    targets    text[] NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE reconciler.configs IS 'The targets of each process, running or stopped. A stopped or killed process keeps its row until another one replaces it.';
COMMENT ON COLUMN reconciler.configs.source IS 'Host and config file. A process that starts replaces those with the same source that share a target with it.';

-- Each heartbeat appends a row and deletes the one before, so that while somebody's transaction holds dead rows back, the
-- newest row is still the first of its index. No row that a change locks or joins is written by a heartbeat.
-- (A column of instances was tried: a heartbeat then waits for a lock that somebody holds on the row, and leases end. Beside a
-- transaction that has been open for 3,000 heartbeats a look reads 202 blocks, and 3 here.)
CREATE TABLE reconciler.heartbeats (
    instance uuid NOT NULL,
    beat     bigint NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    failing  jsonb,
    PRIMARY KEY (instance, beat)
);
COMMENT ON TABLE reconciler.heartbeats IS 'The last heartbeat of each process. It renews everything that the process owns.';
COMMENT ON COLUMN reconciler.heartbeats.beat IS 'Grows with each heartbeat. Another process takes over when it has seen the same number for lease_ttl, by its own clock.';
COMMENT ON COLUMN reconciler.heartbeats.at IS 'By the clock of this server.';
COMMENT ON COLUMN reconciler.heartbeats.failing IS 'Loops of the process that fail again and again; see the view reconciler.failing_loops. NULL: none.';

CREATE TABLE reconciler.leases (
    name            text PRIMARY KEY,
    owner           uuid,
    term            bigint NOT NULL DEFAULT 0,
    lease_ttl       interval NOT NULL DEFAULT '0'
) WITH (fillfactor = 50);
COMMENT ON TABLE reconciler.leases IS 'Leadership: ''tick'' makes revisions and expands changes of base tables.';
INSERT INTO reconciler.leases (name) VALUES ('tick');

CREATE TABLE reconciler.targets (
    id                  integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                text COLLATE "C" NOT NULL UNIQUE,
    configured          boolean NOT NULL DEFAULT false,
    driver              text,
    options_fingerprint text,
    place               text NOT NULL DEFAULT '',
    place_key           text NOT NULL DEFAULT '',
    max_deletes         bigint,
    max_fraction        double precision,
    paused_at           timestamptz,
    paused_reason       text,
    paused_by           text,
    draining            boolean NOT NULL DEFAULT false,
    owner               uuid,
    term                bigint NOT NULL DEFAULT 0,
    lease_ttl           interval NOT NULL DEFAULT '0',
    clean               boolean NOT NULL DEFAULT true,
    circuit_open_since  timestamptz,
    circuit_error       text,
    trouble             text,
    reports_health      boolean NOT NULL DEFAULT false,
    reports_objects     boolean NOT NULL DEFAULT false,
    health_asked_at     timestamptz,
    unhealthy           text,
    guard_deletes       bigint,
    guard_protected     bigint,
    guard_objects       bigint,
    guard_since         timestamptz,
    lost_at             timestamptz,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (reports_health OR health_asked_at IS NULL),
    CHECK (reports_health OR NOT reports_objects),
    CHECK (health_asked_at IS NOT NULL OR unhealthy IS NULL)
) WITH (fillfactor = 50);
COMMENT ON TABLE reconciler.targets IS 'Places that objects are applied to; see the view reconciler.status.';
COMMENT ON COLUMN reconciler.targets.place IS 'Where its objects are, as the options of its last owner name it, without secrets. Empty: its driver names none.';
COMMENT ON COLUMN reconciler.targets.place_key IS 'Equal for equal places. Empty: the place is a secret, or there is none.';
COMMENT ON COLUMN reconciler.targets.configured IS 'A process has this target in its config, running or stopped. False once a process that had it starts without it; a name that only rows mention stays false.';
COMMENT ON COLUMN reconciler.targets.term IS 'Fencing term: grows with each takeover, from the time when the target began, in microseconds since 1970; a write under an older term is refused.';
COMMENT ON COLUMN reconciler.targets.lease_ttl IS 'How long the owner''s lease lives after each of its heartbeats.';
COMMENT ON COLUMN reconciler.targets.clean IS 'False from a takeover after a crash until the first complete sync: the last calls of the former owner may have changed what the ledger takes for unchanged.';
COMMENT ON COLUMN reconciler.targets.lost_at IS 'When this database was restored or failed over, and commits may have been lost that had created objects there. NULL: what the target has was listed since, or acknowledge() says that somebody has looked.';
COMMENT ON COLUMN reconciler.targets.trouble IS 'What fails of the work that the driver does after its calls (a reload command). NULL: nothing.';
COMMENT ON COLUMN reconciler.targets.reports_health IS 'Its driver can say whether what it applied is healthy. The owner writes so before its first call.';
COMMENT ON COLUMN reconciler.targets.reports_objects IS 'Its driver can say so of each object.';
COMMENT ON COLUMN reconciler.targets.health_asked_at IS 'When its owner asked for the newest answer about its health, as this server''s clock says. It asks only while an apply or ask_health() waits for that. NULL: not yet. With reports_objects: about all of its objects, for ask_health().';
COMMENT ON COLUMN reconciler.targets.unhealthy IS 'Why it is not healthy, by that answer. NULL: it is.';
COMMENT ON COLUMN reconciler.targets.draining IS 'release(objects => ''delete'') was called: no row is wanted here any more.';

-- A cursor moves several times a second. Its row is never updated: a move inserts a row and deletes the one before, so that while
-- somebody's transaction holds dead rows back, the newest row is still the first of its index. (As columns of targets, every change
-- walked the versions of all moves since: 17 blocks a settle, and 945 beside a transaction of eight minutes.)
CREATE TABLE reconciler.cursors (
    consumer       integer NOT NULL, -- no foreign key, which would lock the target's row for each move
    id             bigint GENERATED ALWAYS AS IDENTITY,
    revision       bigint NOT NULL,
    snapshot       pg_snapshot NOT NULL,
    batch_revision bigint,
    batch_snapshot pg_snapshot,
    batch_xid      xid8,
    batch_seq      bigint,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, id),
    CHECK ((batch_revision IS NULL) = (batch_snapshot IS NULL)),
    CHECK ((batch_xid IS NULL) = (batch_seq IS NULL)),
    CHECK (batch_xid IS NULL OR batch_revision IS NOT NULL)
);
COMMENT ON TABLE reconciler.cursors IS 'How far each target has recorded the outbox; see the view reconciler.target_cursors. No row: no cursor, a full sync is due.';
COMMENT ON COLUMN reconciler.cursors.consumer IS 'Id of a target; 0: the leader, which expands changes of base tables.';
COMMENT ON COLUMN reconciler.cursors.id IS 'Grows with each move.';
COMMENT ON COLUMN reconciler.cursors.revision IS 'Every change up to here is recorded in the ledger.';
COMMENT ON COLUMN reconciler.cursors.batch_revision IS 'The batch being read goes up to here; batch_xid and batch_seq are the place inside it.';

CREATE TYPE reconciler.object_state AS ENUM ('pending', 'applied', 'failing', 'blocked', 'held');
COMMENT ON TYPE reconciler.object_state IS 'pending: known, not settled; applied: target is as wanted; failing: will be tried again; blocked: waits for a new spec or retry(); held: paused, guarded or gated.';

CREATE TABLE reconciler.ledger (
    -- No foreign keys: two checks for each inserted row would double the cost of a first sync. settle() joins instead.
    target_id        integer NOT NULL,
    resource_id      integer NOT NULL,
    key              text COLLATE "C" NOT NULL,
    state            reconciler.object_state NOT NULL,
    wanted           boolean NOT NULL,
    present          boolean NOT NULL,
    desired_revision bigint NOT NULL DEFAULT 0,
    applied_revision bigint,
    applied_hash     bytea CHECK (octet_length(applied_hash) = 16),
    failed_hash      bytea CHECK (octet_length(failed_hash) = 16),
    attempts         integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    last_error       text,
    held_by          text CHECK (held_by IN ('pause', 'guard', 'sync', 'batch', 'gate')),
    approved         boolean NOT NULL DEFAULT false,
    protected        boolean NOT NULL DEFAULT false,
    next_attempt_at  timestamptz,
    applied_at       timestamptz,
    match            jsonb,
    generation       integer NOT NULL DEFAULT 0,
    memory           bytea CHECK (octet_length(memory) <= 65536),
    PRIMARY KEY (target_id, resource_id, key),
    CHECK ((state = 'held') = (held_by IS NOT NULL)),
    CHECK ((state IN ('pending', 'failing')) = (next_attempt_at IS NOT NULL)),
    CHECK (state <> 'applied' OR (wanted AND present AND applied_hash IS NOT NULL))
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE reconciler.ledger IS 'What each target has, one row for each object. Read it through the view reconciler.objects.';
COMMENT ON COLUMN reconciler.ledger.present IS 'The target has the object, or may have it: true from right before the first call for it.';
COMMENT ON COLUMN reconciler.ledger.failed_hash IS 'Hash of the spec that ended in a terminal error: the same spec is not tried again.';
COMMENT ON COLUMN reconciler.ledger.approved IS 'The delete has passed the guard. Of a protected object: approve() released it.';
COMMENT ON COLUMN reconciler.ledger.protected IS 'Its delete waits for approve(): its row protected it when it was last read, or the driver asks for that. A newer change in the outbox goes first.';
COMMENT ON COLUMN reconciler.ledger.match IS 'For joined resources: the columns of the row that depends_on refers to, so that an object can be found when its row is gone.';
COMMENT ON COLUMN reconciler.ledger.generation IS 'Grows with each retry() and approve(): a result of a look from before leaves state, approval and attempts as they are.';
COMMENT ON COLUMN reconciler.ledger.memory IS 'What the driver keeps with the object, such as the names of what it has made for it. NULL: nothing.';
-- What is due is read from here, oldest first. Ask for it without the state: from PostgreSQL 17 on the planner would rather sort all of
-- ledger_unsettled, while it takes that for small.
CREATE INDEX ledger_due ON reconciler.ledger (target_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX ledger_unsettled ON reconciler.ledger (target_id, state) WHERE state <> 'applied';
-- Without a pending list: until it is merged every search reads all of it, and the planner rather reads the whole ledger.
CREATE INDEX ledger_match ON reconciler.ledger USING gin (match jsonb_path_ops) WITH (fastupdate = off) WHERE match IS NOT NULL;
-- No index by resource alone: on a young table it costs the planner as much as the primary key, and where it wins a
-- look at one object reads the whole resource. What needs all objects of a resource goes through the targets.

-- Not as rows of the ledger, written at the read and updated by the result: that costs a create in batches 2 to 3 times the time and
-- 2.4 times the WAL (50,000 objects, PostgreSQL 15: 0.6 and 1.1 s in batches of 1,000 and 50, against 1.6 and 2.2 s).
CREATE TABLE reconciler.first_calls (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target_id   integer NOT NULL,
    term        bigint NOT NULL,
    resource_id integer NOT NULL,
    keys        text[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- A row lives for as long as the calls: to compress it would cost more than to write it.
ALTER TABLE reconciler.first_calls ALTER keys SET STORAGE EXTERNAL;
COMMENT ON TABLE reconciler.first_calls IS 'Objects that an owner calls for and that the ledger does not know yet, one row for each read. A sync, and the next owner of the target, enter them into it first.';
COMMENT ON COLUMN reconciler.first_calls.term IS 'Of the owner. What an owner of before has left is taken into the ledger by the next one.';

CREATE TABLE reconciler.sync_runs (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target_id    integer NOT NULL REFERENCES reconciler.targets ON DELETE CASCADE,
    -- No foreign key: whoever asks may learn of a resource after it has gone, and an untrack() that is left open would
    -- make every owner wait.
    resource_id  integer,
    reason       text NOT NULL,
    mode         text NOT NULL DEFAULT 'repair' CHECK (mode IN ('repair', 'report')),
    verify       boolean NOT NULL DEFAULT false,
    state        text NOT NULL DEFAULT 'requested' CHECK (state IN ('requested', 'running', 'complete', 'failed')),
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    requested_by text NOT NULL DEFAULT session_user,
    not_before   timestamptz,
    started_at   timestamptz,
    finished_at  timestamptz,
    term         bigint,
    rows         bigint NOT NULL DEFAULT 0,
    upserts      bigint NOT NULL DEFAULT 0,
    tombstones   bigint NOT NULL DEFAULT 0,
    drifted      bigint NOT NULL DEFAULT 0,
    held         bigint NOT NULL DEFAULT 0,
    at_resource  text,
    at_key       text,
    error        text,
    CHECK ((state IN ('complete', 'failed')) = (finished_at IS NOT NULL))
);
CREATE INDEX sync_runs_target ON reconciler.sync_runs (target_id, id);
-- One waiting request for each place: asking twice is asking once.
CREATE UNIQUE INDEX sync_runs_requested ON reconciler.sync_runs (target_id, coalesce(resource_id, 0)) WHERE state = 'requested';
COMMENT ON TABLE reconciler.sync_runs IS 'Syncs: asked for, running and past; see the view reconciler.syncs.';
COMMENT ON COLUMN reconciler.sync_runs.not_before IS 'The request stands for one that failed, and waits until then; NULL: it does not wait.';
COMMENT ON COLUMN reconciler.sync_runs.error IS 'Why it failed; of a request that stands for one that failed, why that did; of a complete full sync, which resources could not be read: they have a sync of their own.';

CREATE TABLE reconciler.left_places (
    target_id integer NOT NULL REFERENCES reconciler.targets ON DELETE CASCADE,
    place     text NOT NULL,
    place_key text NOT NULL,
    objects   bigint NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (target_id, place, place_key)
);
COMMENT ON TABLE reconciler.left_places IS 'Places that targets had before their options changed, and where objects may remain. acknowledge() removes the rows.';
COMMENT ON COLUMN reconciler.left_places.objects IS 'How many objects the ledger had there; counting ends at 100,000.';

CREATE TABLE reconciler.drift_found (
    target_id   integer NOT NULL REFERENCES reconciler.targets ON DELETE CASCADE,
    resource_id integer NOT NULL, -- without foreign key, as sync_runs
    key         text COLLATE "C" NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('missing', 'different', 'orphan', 'stale')),
    unapplied   boolean NOT NULL DEFAULT false,
    sync_id     bigint NOT NULL,
    found_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (target_id, resource_id, key)
);
COMMENT ON COLUMN reconciler.drift_found.unapplied IS 'Its row asks for what no call was made for: wait() does not take it for applied.';
COMMENT ON TABLE reconciler.drift_found IS 'What the last report-mode sync of each target found; see the view reconciler.drift.';

CREATE TABLE reconciler.guard_passes (
    id        uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    target_id integer NOT NULL REFERENCES reconciler.targets ON DELETE CASCADE,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    until     timestamptz NOT NULL,
    deletes   bigint NOT NULL CHECK (deletes > 0),
    objects   bigint NOT NULL
);
CREATE INDEX guard_passes_at ON reconciler.guard_passes (target_id, at);
COMMENT ON TABLE reconciler.guard_passes IS 'Deletes that the guard of each target let pass within its window: the next owner counts on from there.';
COMMENT ON COLUMN reconciler.guard_passes.until IS 'When they count no longer.';
COMMENT ON COLUMN reconciler.guard_passes.objects IS 'How many objects the target had.';

-- What owners were last told of the health of objects. It is small: an owner asks about 100 objects at a time, and goes on when all are healthy.
CREATE TABLE reconciler.object_health (
    target_id   integer NOT NULL,
    resource_id integer NOT NULL,
    key         text COLLATE "C" NOT NULL,
    state       text NOT NULL CHECK (state IN ('progressing', 'unhealthy', 'unknown')),
    reason      text NOT NULL CHECK (octet_length(reason) BETWEEN 1 AND 4096),
    since       timestamptz NOT NULL,
    asked_at    timestamptz NOT NULL,
    PRIMARY KEY (target_id, resource_id, key),
    FOREIGN KEY (target_id, resource_id, key) REFERENCES reconciler.ledger ON DELETE CASCADE
) WITH (fillfactor = 50);
COMMENT ON TABLE reconciler.object_health IS 'Objects that were not healthy when their target''s owner last asked; see the view reconciler.health.';
COMMENT ON COLUMN reconciler.object_health.since IS 'Since when it has been in this state.';
COMMENT ON COLUMN reconciler.object_health.asked_at IS 'When the answer came that was written last. One that says the same is written once for each apply, or ask_health(), that waits.';

-- Rows are only added and deleted: a transaction that has called ask_health() and stays open keeps no other waiting.
CREATE TABLE reconciler.health_asks (
    id        uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    target_id integer NOT NULL REFERENCES reconciler.targets ON DELETE CASCADE,
    at        timestamptz NOT NULL,
    until     timestamptz NOT NULL CHECK (until > at)
);
CREATE INDEX health_asks_at ON reconciler.health_asks (target_id, at);
COMMENT ON TABLE reconciler.health_asks IS 'Until when somebody waits for the health of each target; see ask_health().';
COMMENT ON COLUMN reconciler.health_asks.at IS 'Answers count that were asked for from then on.';

-- What clients of a stream report of the far side. With ack a report decides when an object counts as applied; no call is made because of one.
-- A restore leaves the rows, which are true as of observed_at. They confirm nothing from then on: the far side may have got other versions
-- since. A version that the restore has lost is refused or ignored, and start_over() gives it out to no other object.
CREATE TABLE reconciler.observations (
    -- No foreign keys, as in the ledger: two checks for each row. A row goes with its object's tombstone, its resource or its stream.
    target_id   integer NOT NULL,
    resource_id integer NOT NULL,
    key         text COLLATE "C" NOT NULL,
    version     bigint NOT NULL CHECK (version > 0),
    state       text NOT NULL CHECK (state IN ('applied', 'progressing', 'failed', 'absent')),
    message     text CHECK (octet_length(message) BETWEEN 1 AND 1000),
    healthy     boolean,
    status      jsonb CHECK (jsonb_typeof(status) = 'object'),
    session     bigint NOT NULL CHECK (session > 0),
    seq         bigint NOT NULL CHECK (seq > 0),
    observed_at timestamptz NOT NULL,
    PRIMARY KEY (target_id, resource_id, key)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX observations_failed ON reconciler.observations (target_id) WHERE state = 'failed';
CREATE INDEX observations_unhealthy ON reconciler.observations (target_id) WHERE NOT healthy;
COMMENT ON TABLE reconciler.observations IS 'What clients of streams have reported, one row for each object that is published or has a tombstone. Read it through the view reconciler.objects.';
COMMENT ON COLUMN reconciler.observations.version IS 'The published version that the client had when it looked.';
COMMENT ON COLUMN reconciler.observations.status IS 'Details of the client''s own. It may hold secrets: viewers cannot read it.';
COMMENT ON COLUMN reconciler.observations.session IS 'Number of the session (reconciler.reports) that reported it.';
COMMENT ON COLUMN reconciler.observations.seq IS 'Number of its report in the session.';
COMMENT ON COLUMN reconciler.observations.observed_at IS 'When it was received, by the clock of this server. A complete report that changes nothing of it leaves it as it is, and is in reports.inventory_at.';

CREATE TABLE reconciler.reports (
    target_id     integer PRIMARY KEY, -- the row comes and goes with that of reconciler.streams
    session       text COLLATE "C" CHECK (octet_length(session) BETWEEN 1 AND 64),
    session_id    bigint NOT NULL DEFAULT 0,
    counts_from   bigint NOT NULL DEFAULT 0,
    replaced      text[] NOT NULL DEFAULT '{}',
    seq           bigint NOT NULL DEFAULT 0,
    reported_at   timestamptz,
    inventory_seq bigint NOT NULL DEFAULT 0,
    inventory_at  timestamptz,
    inventory_version bigint NOT NULL DEFAULT 0,
    session_since  timestamptz,
    client_name    text CHECK (octet_length(client_name) BETWEEN 1 AND 128),
    client_version text CHECK (octet_length(client_version) BETWEEN 1 AND 64),
    client_driver  text CHECK (octet_length(client_driver) BETWEEN 1 AND 64),
    held           bigint CHECK (held >= 0),
    trouble        text CHECK (octet_length(trouble) BETWEEN 1 AND 1000),
    healthy        boolean,
    ignored_at     timestamptz,
    ignored_client text CHECK (octet_length(ignored_client) BETWEEN 1 AND 128),
    CHECK ((session IS NULL) = (reported_at IS NULL)),
    CHECK ((session IS NULL) = (session_id = 0)),
    CHECK (inventory_seq <= seq)
) WITH (fillfactor = 50);
COMMENT ON TABLE reconciler.reports IS 'The newest session of clients that reports on each stream; see the view reconciler.stream_reports.';
COMMENT ON COLUMN reconciler.reports.session_id IS 'Counts sessions in the order in which they were first seen here: no clock of a client decides which is the newest.';
COMMENT ON COLUMN reconciler.reports.counts_from IS 'Observations of sessions before it confirm nothing: the database was restored since.';
COMMENT ON COLUMN reconciler.reports.replaced IS 'Sessions before it, at most 1000: their late reports are ignored.';
COMMENT ON COLUMN reconciler.reports.inventory_seq IS 'The newest complete report of the session. Older reports add nothing to it.';
COMMENT ON COLUMN reconciler.reports.inventory_version IS 'Up to which version the client had read the stream when it made its newest complete report; 0: it did not say.';
COMMENT ON COLUMN reconciler.reports.inventory_at IS 'When it was received: every observation that is left was named by it, or is newer.';
COMMENT ON COLUMN reconciler.reports.session_since IS 'When the first report of the session came.';
COMMENT ON COLUMN reconciler.reports.held IS 'Deletes that the client''s own guard holds; NULL: no report of the session has had a client member.';
COMMENT ON COLUMN reconciler.reports.trouble IS 'What keeps the client from its work, in its own words.';
COMMENT ON COLUMN reconciler.reports.healthy IS 'Whether the far side as a whole is healthy, as the client reported; NULL: not reported.';
COMMENT ON COLUMN reconciler.reports.ignored_at IS 'When a report of a session came that this one has replaced; written at most once a minute.';
COMMENT ON COLUMN reconciler.reports.ignored_client IS 'Name of the client that sent it, or its session.';

-- +goose Down
-- Everything but goose's own table goes, with the generated capture code. What the targets have stays there.
-- +goose StatementBegin
DO $$
DECLARE
    statement text;
BEGIN
    -- Listed before the first goes: names of what a CASCADE took along cannot be looked up any more.
    FOREACH statement IN ARRAY ARRAY(
        SELECT format('DROP ROUTINE IF EXISTS %s CASCADE', p.oid::regprocedure) FROM pg_proc p
        WHERE p.pronamespace = 'reconciler'::regnamespace
        UNION ALL
        SELECT format('DROP %s IF EXISTS %s CASCADE', CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass)
        FROM pg_class c
        WHERE c.relnamespace = 'reconciler'::regnamespace AND c.relkind IN ('v', 'r', 'p', 'S')
          AND c.relname NOT LIKE 'goose_db_version%'
          -- Sequences of identity columns go with their tables.
          AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i') AND c.relkind = 'S')
    )
    LOOP
        EXECUTE statement;
    END LOOP;
    DROP TYPE reconciler.object_state;
END
$$;
-- +goose StatementEnd
