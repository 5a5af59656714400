-- +goose Up

-- Who may do what. One list (rights) says what each kind of role needs; grant, revoke and doctor all read it.

CREATE TABLE reconciler.grants (
    role_name  name NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('viewer', 'operator', 'writer', 'runtime', 'definer')),
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    granted_by name NOT NULL DEFAULT session_user,
    PRIMARY KEY (role_name, kind)
);
COMMENT ON TABLE reconciler.grants IS 'What reconciler.grant() was told, so that a later version can give the same roles the rights to what is new in it.';

-- +goose StatementBegin
-- rights lists what a kind of role needs. A viewer reads everything but the specs of objects, which may hold secrets;
-- an operator may also give orders; runtime is the daemon; a definer may call track().
CREATE FUNCTION reconciler.rights(kind text) RETURNS TABLE (class text, object text, privilege text, columns text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH relations AS (
        SELECT c.oid, c.oid::regclass::text AS object, c.relname, c.relkind, c.relname LIKE 'desired\_%' AS desired, c.relname IN ('grants', 'goose_db_version') AS administrative
        FROM pg_class c WHERE c.relnamespace = 'reconciler'::regnamespace AND c.relkind IN ('r', 'p', 'v')
    ), functions AS (
        SELECT p.oid::regprocedure::text AS object, p.proname, p.provolatile,
            -- Generated functions are called by their owner's triggers alone.
            CASE WHEN p.proname IN ('grant', 'revoke', 'regrant') OR p.prorettype = 'trigger'::regtype THEN 'nobody'
                 WHEN p.proname IN ('resync', 'retry', 'pause', 'resume', 'approve', 'acknowledge', 'release',
                     'apply_pause', 'apply_stop', 'apply_start', 'apply_release', 'apply_cancel', 'apply_retry', 'begin_resync') THEN 'order'
                 WHEN p.proname = 'begin_apply' THEN 'begin'
                 WHEN p.proname IN ('track', 'untrack', 'regenerate', 'set_notify', 'set_applies') THEN 'define'
                 WHEN p.provolatile <> 'v' OR p.proname IN ('wait', 'wait_for', 'apply_wait', 'ask_health', 'wait_healthy', 'wait_for_health') THEN 'look'
                 ELSE 'internal' END AS purpose
        FROM pg_proc p WHERE p.pronamespace = 'reconciler'::regnamespace
    )
    SELECT 'SCHEMA', 'reconciler', p, NULL FROM unnest(CASE WHEN rights.kind = 'definer' THEN '{USAGE,CREATE}'::text[] ELSE '{USAGE}' END) AS p
    UNION ALL
    SELECT 'TABLE', r.object, 'SELECT', CASE WHEN (r.desired OR r.relname IN ('published', 'observations')) AND rights.kind <> 'runtime' THEN
        (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = r.oid AND a.attnum > 0
           AND (NOT r.desired AND a.attname NOT IN ('spec', 'status') OR r.desired AND (a.attname IN ('target', 'key', 'running') OR a.attname LIKE 'key\_%'))) END
    FROM relations r WHERE rights.kind <> 'writer'
    UNION ALL
    SELECT 'TABLE', r.object, p, NULL FROM relations r, unnest('{INSERT,UPDATE,DELETE}'::text[]) AS p
    WHERE rights.kind = 'runtime' AND r.relkind <> 'v' AND NOT r.administrative
    UNION ALL
    SELECT 'TABLE', r.object, 'TRUNCATE', NULL FROM relations r WHERE rights.kind = 'runtime' AND (r.relname ~ '^outbox(_[0-3])?$' AND r.relkind <> 'v' OR r.relname = 'ticks')
    UNION ALL
    SELECT 'TABLE', 'reconciler.' || d.name, d.privilege, NULL
    FROM (VALUES ('resources', 'INSERT'), ('resources', 'UPDATE'), ('resources', 'DELETE'), ('dependencies', 'INSERT'), ('dependencies', 'UPDATE'), ('dependencies', 'DELETE'),
                 ('outbox', 'INSERT'), ('apply_events', 'TRIGGER')) AS d(name, privilege)
    WHERE rights.kind = 'definer' AND to_regclass('reconciler.' || d.name) IS NOT NULL
    UNION ALL
    SELECT 'SEQUENCE', 'reconciler.' || d.name, d.privilege, NULL
    FROM (VALUES ('runtime', 'outbox_seq', 'USAGE'), ('runtime', 'outbox_seq', 'SELECT'), ('runtime', 'outbox_seq', 'UPDATE'), ('definer', 'outbox_seq', 'USAGE'),
                 ('runtime', 'published_seq', 'USAGE'), ('runtime', 'published_seq', 'SELECT'), ('runtime', 'published_seq', 'UPDATE')) AS d(kind, name, privilege)
    WHERE d.kind = rights.kind AND to_regclass('reconciler.' || d.name) IS NOT NULL
    UNION ALL
    SELECT 'FUNCTION', f.object, 'EXECUTE', NULL FROM functions f
    WHERE f.purpose = ANY (CASE rights.kind WHEN 'viewer' THEN '{look}'::text[] WHEN 'operator' THEN '{look,order,begin}'
        WHEN 'runtime' THEN '{look,order,begin,internal}' WHEN 'writer' THEN '{begin}' ELSE '{look,define,begin,internal}' END)
$$;

-- missing_rights lists the rights of a kind that a role has not, by itself or as a member of another role.
CREATE FUNCTION reconciler.missing_rights(role_name name, kind text) RETURNS TABLE (class text, object text, privilege text, columns text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.* FROM reconciler.rights(missing_rights.kind) AS r
    WHERE NOT CASE r.class
        WHEN 'SCHEMA' THEN has_schema_privilege(missing_rights.role_name, r.object, r.privilege)
        WHEN 'FUNCTION' THEN has_function_privilege(missing_rights.role_name, r.object, r.privilege)
        WHEN 'SEQUENCE' THEN has_sequence_privilege(missing_rights.role_name, r.object, r.privilege)
        ELSE has_table_privilege(missing_rights.role_name, r.object, r.privilege) OR r.columns IS NOT NULL AND
            (SELECT bool_and(has_column_privilege(missing_rights.role_name, r.object, c, r.privilege)) FROM string_to_table(r.columns, ', ') AS c)
    END
$$;

-- as_owner executes a GRANT or REVOKE. Desired views belong to whoever called track(): only that role or a superuser can.
CREATE FUNCTION reconciler.as_owner(object text, statement text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE statement;
    RETURN true;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING '% belongs to another role, which has to: %;', object, statement;
    RETURN false;
END
$$;

-- grant gives a role the rights of a kind. It can be called again: after track() of another role, or after an upgrade.
CREATE FUNCTION reconciler.grant(role_name name, kind text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    uncaptured text[] := ARRAY(SELECT f.resource FROM reconciler.failing_writes() AS f);
    given      bigint;
BEGIN
    PERFORM reconciler.check_grant("grant".role_name, "grant".kind);
    INSERT INTO reconciler.grants (role_name, kind) VALUES ("grant".role_name, "grant".kind) ON CONFLICT DO NOTHING;
    given := reconciler.give("grant".role_name, "grant".kind);
    -- What was not captured until now is found by a sync.
    INSERT INTO reconciler.outbox (resource_id) SELECT r.id FROM reconciler.resources r WHERE r.name = ANY (uncaptured);
    RETURN format('%s is %s of reconciler: %s given', quote_ident("grant".role_name), "grant".kind, reconciler.counted(given, 'right'));
END
$$;

-- revoke takes back the rights of a kind that no other kind of the role needs. It refuses what would leave writes uncaptured.
CREATE FUNCTION reconciler.revoke(role_name name, kind text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    lost    record;
    failing text[] := ARRAY(SELECT f.resource FROM reconciler.failing_writes() AS f);
    newly   text;
BEGIN
    PERFORM reconciler.check_grant("revoke".role_name, "revoke".kind);
    DELETE FROM reconciler.grants g WHERE g.role_name = "revoke".role_name AND g.kind = "revoke".kind;
    FOR lost IN SELECT * FROM reconciler.rights("revoke".kind) EXCEPT
                SELECT r.* FROM reconciler.grants g, reconciler.rights(g.kind) AS r WHERE g.role_name = "revoke".role_name LOOP
        PERFORM reconciler.as_owner(lost.object, format('REVOKE %s%s ON %s %s FROM %I', lost.privilege, ' (' || lost.columns || ')', lost.class, lost.object, "revoke".role_name));
    END LOOP;
    SELECT string_agg(f.resource, ', ' ORDER BY f.resource) INTO newly FROM reconciler.failing_writes() AS f WHERE f.resource <> ALL (failing);
    IF newly IS NOT NULL THEN
        RAISE EXCEPTION 'role % must stay %: triggers of % run as it, and would capture nothing', quote_ident("revoke".role_name), "revoke".kind, newly
            USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Nothing was taken. First untrack() them, and let another definer track() them.';
    END IF;
    RETURN format('%s is no %s of reconciler any more', quote_ident("revoke".role_name), "revoke".kind);
END
$$;

-- give grants what is missing, and says how much.
CREATE FUNCTION reconciler.give(role_name name, kind text) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FILTER (WHERE reconciler.as_owner(m.object, format('GRANT %s%s ON %s %s TO %I', m.privilege, ' (' || m.columns || ')', m.class, m.object, give.role_name)))
    FROM reconciler.missing_rights(give.role_name, give.kind) AS m
$$;

CREATE FUNCTION reconciler.check_grant(role_name name, kind text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner oid := (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'reconciler');
BEGIN
    IF NOT pg_has_role(owner, 'USAGE') THEN
        RAISE EXCEPTION 'role % may not grant rights on reconciler', quote_ident(current_user) USING ERRCODE = 'insufficient_privilege',
            HINT = format('Only %s, the owner of the schema, may.', quote_ident(pg_get_userbyid(owner)));
    END IF;
    IF check_grant.kind IS NULL OR check_grant.kind NOT IN ('viewer', 'operator', 'writer', 'runtime', 'definer') THEN
        RAISE EXCEPTION 'no kind of role is called %', quote_nullable(check_grant.kind) USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Kinds: viewer (reads), operator (pause, retry, approve, ...), writer (begin_apply), runtime (the daemon), definer (track)';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = check_grant.role_name) THEN
        RAISE EXCEPTION 'no role is named %', quote_nullable(check_grant.role_name) USING ERRCODE = 'undefined_object', HINT = 'CREATE ROLE makes one.';
    END IF;
END
$$;

-- regrant is the last step of every migration that adds a table, view or function: nobody may call a new function but
-- those that a kind of role is for. (Default privileges cannot do this: a schema's only add to the database's.)
CREATE FUNCTION reconciler.regrant() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'reconciler'::regnamespace AND pg_has_role(p.proowner, 'USAGE')
             AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a WHERE a.grantee = 0) LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
    PERFORM reconciler.give(g.role_name, g.kind) FROM reconciler.grants g JOIN pg_roles r ON r.rolname = g.role_name;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.rights IS 'What a kind of role (viewer, operator, runtime, definer) needs.';
COMMENT ON FUNCTION reconciler.missing_rights IS 'What a role lacks to be of a kind (viewer, operator, runtime, definer).';
COMMENT ON FUNCTION reconciler.grant IS 'Gives a role the rights of a kind: viewer (reads everything but specs), operator (may also pause, resume, retry, resync, approve, release), runtime (the daemon), definer (may track). Call it again to complete them.';
COMMENT ON FUNCTION reconciler.revoke IS 'Takes back what grant() gave, unless another kind of the same role needs it.';
COMMENT ON FUNCTION reconciler.as_owner IS 'Internal: executes a GRANT or REVOKE, or says who has to.';
COMMENT ON FUNCTION reconciler.give IS 'Internal: grants what is missing.';
COMMENT ON FUNCTION reconciler.check_grant IS 'Internal: checks the arguments of grant() and revoke().';
COMMENT ON FUNCTION reconciler.regrant IS 'Internal: last step of a migration; takes new functions from PUBLIC and completes what grant() gave.';

-- +goose Down
DROP FUNCTION reconciler.regrant, reconciler.check_grant, reconciler.give, reconciler.revoke, reconciler.grant, reconciler.as_owner, reconciler.missing_rights, reconciler.rights;
DROP TABLE reconciler.grants;
