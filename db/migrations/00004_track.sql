-- +goose Up

-- +goose StatementBegin
CREATE FUNCTION reconciler.define(
    resource text, relation regclass, key text[], target text, running text, spec text, ignore text[], depends_on jsonb,
    always boolean, protect text, path text
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    p_id     integer;
    existing reconciler.resources;
    wanted   reconciler.resources;
BEGIN
    IF define.resource IS NULL OR define.resource !~ '^[A-Za-z_][A-Za-z0-9_.-]{0,47}$' OR define.resource ~ '[.][.]' THEN
        RAISE EXCEPTION 'resource name % is not usable: letters, digits, "_", "." and "-", starting with a letter or "_", without "..", at most 48', coalesce(quote_literal(define.resource), 'NULL')
            USING ERRCODE = 'invalid_name';
    END IF;
    IF define.relation IS NULL THEN
        RAISE EXCEPTION 'relation is NULL: name the table or view that resource % is made from', define.resource USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = define.relation) THEN
        RAISE EXCEPTION 'relation with oid % does not exist', define.relation::oid USING ERRCODE = 'undefined_table';
    END IF;
    PERFORM reconciler.check_relation(define.relation);
    wanted.name := define.resource;
    wanted.relation := define.relation;
    SELECT c.relname, c.relkind INTO wanted.alias, wanted.relation_kind FROM pg_class c WHERE c.oid = define.relation;
    wanted.key_columns := define.key;
    wanted.key_types := reconciler.check_key(define.relation, define.key);
    wanted.target := define.target;
    wanted.running := define.running;
    wanted.spec := define.spec;
    wanted.ignored := coalesce(define.ignore, '{}');
    wanted.depends_on := define.depends_on;
    wanted.always := coalesce(define.always, false);
    wanted.protect := define.protect;
    PERFORM reconciler.check_definer(wanted);
    PERFORM reconciler.check_ignored(wanted);
    wanted := reconciler.bind_definition(wanted, define.path);
    IF wanted.alias IN ('old', 'new') THEN
        -- Views have had rows of these names of their own until PostgreSQL 16: bound expressions say old_1.
        SELECT CASE WHEN starts_with(b.bound, wanted.alias || '_1.') THEN wanted.alias || '_1' ELSE wanted.alias END INTO wanted.alias
        FROM reconciler.bind_expression('key', wanted.relation, wanted.alias, format('%I.%I', wanted.alias, wanted.key_columns[1]), define.path) AS b;
        wanted.spec_bound := CASE WHEN wanted.spec IS NULL THEN reconciler.whole_row_spec(wanted) ELSE wanted.spec_bound END;
    END IF;
    PERFORM reconciler.check_base_tables(wanted, define.path);
    wanted.match_columns := ARRAY(SELECT DISTINCT c FROM reconciler.parse_depends_on(define.relation, define.depends_on, define.path) AS d, unnest(d.columns) AS c ORDER BY c);
    wanted.match_types := reconciler.link_types(define.relation, wanted.match_columns);

    PERFORM reconciler.lock_definitions();
    SELECT * INTO existing FROM reconciler.resources r WHERE r.name = define.resource;
    wanted.id := existing.id;
    wanted.known_columns := existing.known_columns;
    wanted.version := existing.version;
    wanted.rollout := existing.rollout;
    wanted.capture_version := existing.capture_version;
    wanted.created_at := existing.created_at;
    wanted.changed_at := existing.changed_at;
    IF wanted IS NOT DISTINCT FROM existing AND NOT EXISTS (SELECT FROM reconciler.capture_problems(existing.id)) THEN
        RETURN 'unchanged';
    END IF;
    PERFORM reconciler.check_owner(existing.id);
    p_id := reconciler.store_definition(wanted, define.path);
    PERFORM reconciler.install_capture(p_id, (SELECT a.oid FROM pg_roles a WHERE a.rolname = current_user));
    -- Through subqueries in the expressions too.
    PERFORM reconciler.check_hidden_rows(c.oid, c.relowner) FROM pg_class c WHERE c.oid = to_regclass(format('reconciler.%I', 'desired_' || define.resource));
    PERFORM reconciler.advise_index(p_id);
    -- The objects concerned are all of them: rows may have been there before.
    INSERT INTO reconciler.outbox (resource_id) VALUES (p_id);
    IF (SELECT s.notify FROM reconciler.settings s) THEN
        PERFORM pg_notify('reconciler_wake', ''), pg_notify('reconciler_control', '');
    END IF;
    RETURN CASE WHEN existing.id IS NULL THEN 'created' ELSE 'replaced' END;
END
$$;

-- check_definer says which rights are missing, and refuses to read through row security: rows that it hides would look gone.
CREATE FUNCTION reconciler.check_definer(r reconciler.resources) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT has_table_privilege('reconciler.resources', 'INSERT') OR NOT has_schema_privilege('reconciler', 'CREATE') THEN
        RAISE EXCEPTION 'role % may not track: it needs to define resources in schema reconciler', quote_ident(current_user) USING ERRCODE = 'insufficient_privilege',
            HINT = format('As the owner of schema reconciler: SELECT reconciler.grant(%L, ''definer'');', current_user);
    END IF;
    IF r.relation_kind IN ('r', 'p') AND NOT has_table_privilege(r.relation, 'TRIGGER') OR NOT has_table_privilege(r.relation, 'SELECT') THEN
        RAISE EXCEPTION 'role % may not track %: it needs %', quote_ident(current_user), r.relation, CASE WHEN r.relation_kind IN ('r', 'p') THEN 'SELECT and TRIGGER on it' ELSE 'SELECT on it' END
            USING ERRCODE = 'insufficient_privilege',
            HINT = format('GRANT %s ON %s TO %I;', CASE WHEN r.relation_kind IN ('r', 'p') THEN 'SELECT, TRIGGER' ELSE 'SELECT' END, r.relation, current_user);
    END IF;
    IF r.always AND r.relation_kind IN ('r', 'p') AND NOT (SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = r.relation) THEN
        RAISE EXCEPTION 'role % may not track % with always => true: only its owner may enable a trigger ALWAYS', quote_ident(current_user), r.relation USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM reconciler.check_hidden_rows(r.relation, (SELECT a.oid FROM pg_roles a WHERE a.rolname = current_user));
END
$$;

-- check_hidden_rows refuses what would be read through row security: rows that it hides would be taken for deleted, so such a
-- read fails.
CREATE FUNCTION reconciler.check_hidden_rows(relation regclass, role oid) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    h record;
BEGIN
    SELECT x.guarded, x.reader, c.relowner INTO h FROM reconciler.hidden_rows(relation, role) AS x JOIN pg_class c ON c.oid = x.guarded ORDER BY x.guarded::text, x.reader LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'row security of % applies to role %: rows that it hides would be taken for deleted', h.guarded, quote_ident(pg_get_userbyid(h.reader)) USING ERRCODE = 'insufficient_privilege',
            HINT = CASE WHEN h.reader = role THEN 'Let the owner of the table call track(), or a role with BYPASSRLS.'
                ELSE format('ALTER ROLE %I BYPASSRLS; or give the view that reads it to the owner of the table.', pg_get_userbyid(h.reader)) END;
    END IF;
END
$$;

CREATE FUNCTION reconciler.check_ignored(r reconciler.resources) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    col text;
BEGIN
    FOREACH col IN ARRAY r.ignored LOOP
        IF col IS NULL OR col <> ALL (reconciler.columns_of(r.relation)) THEN
            RAISE EXCEPTION 'ignore: % has no column %', r.relation, coalesce(quote_ident(col), 'NULL') USING ERRCODE = 'undefined_column',
                HINT = format('Its columns are %s.', reconciler.columns_text(r.relation));
        END IF;
        IF col = ANY (r.key_columns) THEN
            RAISE EXCEPTION 'ignore: column % is part of the key', quote_ident(col) USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
END
$$;

CREATE FUNCTION reconciler.whole_row_spec(r reconciler.resources) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT format('to_jsonb(%I.*) - %L::text[]', r.alias, r.ignored) $$;

CREATE FUNCTION reconciler.bind_condition(label text, r reconciler.resources, expression text, path text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    b record;
BEGIN
    SELECT * INTO b FROM reconciler.bind_expression(label, r.relation, r.alias, expression, path);
    IF reconciler.base_type(b.type) <> 'boolean'::regtype THEN
        RAISE EXCEPTION '% must be boolean, not %: %', label, b.type, expression USING ERRCODE = 'datatype_mismatch';
    END IF;
    RETURN b.bound;
END
$$;

-- bind_definition fills in what PostgreSQL understood of the expressions.
CREATE FUNCTION reconciler.bind_definition(r reconciler.resources, path text) RETURNS reconciler.resources
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    b record;
BEGIN
    SELECT * INTO b FROM reconciler.bind_expression('target', r.relation, r.alias, r.target, path);
    IF reconciler.target_text('x', b.type) IS NULL THEN
        RAISE EXCEPTION 'target must be text (the name of a target), not %: %', b.type, r.target USING ERRCODE = 'datatype_mismatch';
    END IF;
    -- Text stays as it is, so that an index on the column can be used.
    r.target_bound := CASE WHEN b.type IN ('text', 'varchar', 'name') THEN b.bound ELSE reconciler.target_text(b.bound, b.type) END;
    r.running_bound := reconciler.bind_condition('running', r, r.running, path);
    r.protect_bound := CASE WHEN r.protect IS NULL THEN 'false' ELSE reconciler.bind_condition('protect', r, r.protect, path) END;
    IF r.spec IS NULL THEN
        r.spec_bound := reconciler.whole_row_spec(r);
    ELSE
        SELECT * INTO b FROM reconciler.bind_expression('spec', r.relation, r.alias, r.spec, path);
        -- Text becomes a JSON string, which drivers take as raw text.
        r.spec_bound := CASE b.type WHEN 'jsonb'::regtype THEN format('(%s)', b.bound) WHEN 'json'::regtype THEN format('(%s)::jsonb', b.bound) ELSE format('to_jsonb(%s)', b.bound) END;
    END IF;
    RETURN r;
END
$$;

-- check_base_tables is about what depends_on is for: changes that no trigger on the relation itself sees.
CREATE FUNCTION reconciler.check_base_tables(r reconciler.resources, path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    d     record;
    twice boolean;
BEGIN
    IF r.relation_kind = 'v' AND r.depends_on IS NULL THEN
        RAISE EXCEPTION '% is a view: say in depends_on which tables its rows come from', r.relation USING ERRCODE = 'invalid_parameter_value',
            HINT = 'For example depends_on => ''{"workspaces": {"id": "workspace_id"}}'': when a row of workspaces changes, the rows of the view with that workspace_id are looked at. ''{}'' leaves everything to the sync.';
    END IF;
    IF r.relation_kind IN ('m', 'f') THEN
        RAISE WARNING '% is a % and has no triggers that see its changes: they are found by the sync only', r.relation,
            CASE r.relation_kind WHEN 'm' THEN 'materialized view' ELSE 'foreign table' END;
    END IF;
    FOR d IN SELECT p.base_relation FROM reconciler.parse_depends_on(r.relation, r.depends_on, path) AS p LOOP
        IF NOT has_table_privilege(d.base_relation, 'TRIGGER') THEN
            RAISE EXCEPTION 'role % may not track %: it needs TRIGGER on %', quote_ident(current_user), r.relation, d.base_relation USING ERRCODE = 'insufficient_privilege',
                HINT = format('GRANT TRIGGER ON %s TO %I;', d.base_relation, current_user);
        END IF;
        IF r.always AND NOT (SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = d.base_relation) THEN
            RAISE EXCEPTION 'role % may not track % with always => true: only the owner of % may enable a trigger ALWAYS', quote_ident(current_user), r.relation, d.base_relation
                USING ERRCODE = 'insufficient_privilege';
        END IF;
    END LOOP;
    IF r.relation_kind NOT IN ('r', 'p') THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM %s GROUP BY %s HAVING count(*) > 1)', r.relation, (SELECT string_agg(quote_ident(k), ', ') FROM unnest(r.key_columns) AS k)) INTO twice;
        IF twice THEN
            RAISE EXCEPTION 'key: (%) is not unique in %', array_to_string(r.key_columns, ', '), r.relation USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
END
$$;

-- store_definition writes the definition down. Dependencies that stay keep their ids, and with them their triggers.
CREATE FUNCTION reconciler.store_definition(wanted reconciler.resources, path text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    p_id integer := wanted.id;
BEGIN
    PERFORM reconciler.raise_sequences();
    IF p_id IS NULL THEN
        INSERT INTO reconciler.resources (name, relation, relation_kind, alias, key_columns, key_types, target, running, spec, ignored, depends_on, always,
            protect, target_bound, running_bound, spec_bound, protect_bound, match_columns, match_types)
        VALUES (wanted.name, wanted.relation, wanted.relation_kind, wanted.alias, wanted.key_columns, wanted.key_types, wanted.target, wanted.running, wanted.spec, wanted.ignored,
            wanted.depends_on, wanted.always, wanted.protect, wanted.target_bound, wanted.running_bound, wanted.spec_bound, wanted.protect_bound, wanted.match_columns, wanted.match_types)
        RETURNING id INTO p_id;
    ELSE
        UPDATE reconciler.resources r SET relation = wanted.relation, relation_kind = wanted.relation_kind, alias = wanted.alias, key_columns = wanted.key_columns,
            key_types = wanted.key_types, target = wanted.target, running = wanted.running, spec = wanted.spec, ignored = wanted.ignored, depends_on = wanted.depends_on,
            always = wanted.always, protect = wanted.protect, protect_bound = wanted.protect_bound,
            target_bound = wanted.target_bound, running_bound = wanted.running_bound, spec_bound = wanted.spec_bound,
            match_columns = wanted.match_columns, match_types = wanted.match_types, version = r.version + 1, removed_at = NULL, changed_at = clock_timestamp()
        WHERE r.id = p_id;
    END IF;
    DELETE FROM reconciler.dependencies d WHERE d.resource_id = p_id AND NOT EXISTS (
        SELECT FROM reconciler.parse_depends_on(wanted.relation, wanted.depends_on, path) AS p WHERE p.base_relation = d.relation AND p.base = d.base AND p.columns = d.columns);
    INSERT INTO reconciler.dependencies (resource_id, relation, base, columns)
    SELECT p_id, p.base_relation, p.base, p.columns FROM reconciler.parse_depends_on(wanted.relation, wanted.depends_on, path) AS p
    WHERE NOT EXISTS (SELECT FROM reconciler.dependencies d WHERE d.resource_id = p_id AND p.base_relation = d.relation AND p.base = d.base AND p.columns = d.columns);
    UPDATE reconciler.dependencies d SET known_columns = reconciler.column_names(d.relation) WHERE d.resource_id = p_id;
    RETURN p_id;
END
$$;

-- track only hands over the caller's search path, under which names in the definition are looked up; the work is done
-- under a pinned one.
CREATE FUNCTION reconciler.track(
    resource   text,
    relation   regclass,
    key        text[],
    target     text,
    running    text DEFAULT 'true',
    spec       text DEFAULT NULL,
    ignore     text[] DEFAULT '{}',
    depends_on jsonb DEFAULT NULL,
    always     boolean DEFAULT false,
    protect    text DEFAULT NULL
) RETURNS text
LANGUAGE sql AS $$
    SELECT reconciler.define(resource, relation, key, target, running, spec, ignore, depends_on, always, protect, pg_catalog.current_setting('search_path'))
$$;

-- unqualified takes the table's name away from the columns of a bound expression, but not from what looks like it in a literal.
CREATE FUNCTION reconciler.unqualified(bound text, alias text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN alias !~ '^[a-z_][a-z0-9_]*$' THEN bound ELSE (
        SELECT string_agg(CASE WHEN t.token[1] LIKE '''%' THEN t.token[1] ELSE regexp_replace(t.token[1], format('(^|[^[:alnum:]_$.])%s[.]', alias), E'\\1', 'g') END, '' ORDER BY t.n)
        FROM regexp_matches(bound, $re$"(?:[^"]|"")*"|'(?:[^']|'')*'|[^"']+$re$, 'g') WITH ORDINALITY AS t(token, n)) END
$$;

-- index_advice returns the index that sync pages lack, or NULL when there is one to walk (or no table to put it on).
CREATE FUNCTION reconciler.index_advice(resource_id integer) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r reconciler.resources;
    target_column text;
    columns   text[];
    condition text;
BEGIN
    SELECT * INTO STRICT r FROM reconciler.resources x WHERE x.id = resource_id;
    IF r.relation_kind NOT IN ('r', 'p', 'm') THEN
        RETURN NULL;
    END IF;
    -- A bound expression over a plain column reads alias.column. Of other types than these the text is what is looked for.
    SELECT a.attname INTO target_column FROM pg_attribute a WHERE a.attrelid = r.relation AND a.attnum > 0 AND NOT a.attisdropped
        AND r.target_bound = format('%I.%I', r.alias, a.attname) AND reconciler.base_type(a.atttypid) IN ('text'::regtype, 'varchar'::regtype);
    IF target_column IS NULL THEN
        RETURN NULL;
    END IF;
    columns := target_column || ARRAY(SELECT k FROM unnest(r.key_columns) WITH ORDINALITY AS x(k, n) WHERE k <> target_column ORDER BY n);
    IF EXISTS (SELECT FROM pg_index i WHERE i.indrelid = r.relation AND i.indisvalid AND i.indexprs IS NULL
        AND ARRAY(SELECT a.attname::text FROM unnest(i.indkey::smallint[]) WITH ORDINALITY AS k(attnum, n) JOIN pg_attribute a ON a.attrelid = r.relation AND a.attnum = k.attnum
                  WHERE k.n <= cardinality(columns) ORDER BY k.n) = columns) THEN
        RETURN NULL;
    END IF;
    -- An index takes immutable conditions only. What calls a function (a name and a bracket), has a subquery or uses the
    -- current time may not be; and a renamed table does not go by its old name.
    condition := CASE WHEN r.running_bound IN ('true', 'TRUE') OR r.running_bound ~ '[[:alnum:]_"][(]|CURRENT_|LOCALTIME|SELECT'
        OR r.alias <> (SELECT c.relname FROM pg_class c WHERE c.oid = r.relation) THEN '' ELSE format(' WHERE %s', reconciler.unqualified(r.running_bound, r.alias)) END;
    RETURN format('CREATE INDEX %sON %s (%s)%s;', CASE r.relation_kind WHEN 'p' THEN '' ELSE 'CONCURRENTLY ' END, r.relation,
        (SELECT string_agg(quote_ident(c), ', ' ORDER BY n) FROM unnest(columns) WITH ORDINALITY AS k(c, n)), condition);
END
$$;

CREATE FUNCTION reconciler.advise_index(resource_id integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    advice text := reconciler.index_advice(resource_id);
BEGIN
    IF advice IS NOT NULL THEN
        RAISE NOTICE 'a sync of resource % has no index to walk and scans the table for each page; create one with: %',
            (SELECT name FROM reconciler.resources WHERE id = resource_id), advice;
    END IF;
END
$$;

-- failing_writes lists the resources whose triggers run as a role that may not write the outbox: they capture nothing.
CREATE FUNCTION reconciler.failing_writes() RETURNS TABLE (resource text, role_name name)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT DISTINCT r.name, o.rolname
    FROM reconciler.resources r CROSS JOIN LATERAL reconciler.capture_functions(r.id) AS f JOIN pg_proc p ON p.oid = f JOIN pg_roles o ON o.oid = p.proowner
    WHERE r.removed_at IS NULL
      AND NOT (has_schema_privilege(o.oid, 'reconciler', 'USAGE') AND has_table_privilege(o.oid, 'reconciler.outbox', 'INSERT') AND has_sequence_privilege(o.oid, 'reconciler.outbox_seq', 'USAGE'))
$$;

-- capture_problems says what of a resource's capture is not as it should be: one row for each problem.
-- healable: regenerate() mends it; otherwise a person must (usually by track() with the new names).
CREATE FUNCTION reconciler.capture_problems(resource_id integer DEFAULT NULL)
RETURNS TABLE (resource text, problem text, remedy text, healable boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH defined AS (
        SELECT x AS definition, x.*, array_remove(x.known_columns, NULL) AS known, c.oid IS NOT NULL AS there, c.relname, c.relnamespace, reconciler.columns_of(x.relation) AS columns, to_regclass(format('reconciler.%I', 'desired_' || x.name)) AS desired
        FROM reconciler.resources x LEFT JOIN pg_class c ON c.oid = x.relation
        WHERE x.removed_at IS NULL AND (x.id = capture_problems.resource_id OR capture_problems.resource_id IS NULL)
    ), r AS (SELECT * FROM defined WHERE there),
    base AS (SELECT r.name, r.desired, d.*, c.oid IS NOT NULL AS there FROM r JOIN reconciler.dependencies d ON d.resource_id = r.id LEFT JOIN pg_class c ON c.oid = d.relation),
    renamed AS (
        SELECT b.name, format('column %I of %s, which depends_on names, is gone or was renamed; its changes are still found, by a sync after each write', k, b.relation) AS problem
        FROM base b, unnest(b.base) AS k
        WHERE b.there AND (k <> ALL (reconciler.columns_of(b.relation))
            OR reconciler.is_another(b.relation, b.known_columns, k))
        UNION ALL
        SELECT r.name, format('key column %I of %s is gone or was renamed', k, r.relation)
        FROM r, unnest(r.key_columns) AS k WHERE k <> ALL (r.columns)
        UNION ALL
        SELECT r.name, format('ignored column %I of %s is gone or was renamed', k, r.relation) FROM r, unnest(r.ignored) AS k WHERE k <> ALL (r.columns)
        UNION ALL
        -- The view follows a renamed column, the definition does not.
        SELECT r.name, format('column %I of %s had another name when it was tracked: %I; until track() is called, each change is looked at in every target', c.new_name, r.relation, c.old_name)
        FROM r CROSS JOIN LATERAL reconciler.renamed_columns(r.definition) AS c WHERE r.key_columns <@ r.columns
    ),
    found AS (
        SELECT d.name, format('%I, which it is made from, is gone', d.alias) AS problem, format('SELECT reconciler.untrack(%L);', d.name) AS remedy FROM defined d WHERE NOT there
        UNION ALL
        SELECT b.name, format('the table with oid %s that it depends on is gone', b.relation::oid), 'call reconciler.track() with the new depends_on' FROM base b WHERE NOT b.there
        UNION ALL
        SELECT n.name, n.problem, 'call reconciler.track() with the new name' FROM renamed n
        UNION ALL
        SELECT r.name, format('%s, which it is made from, was called %I; another table or view has that name now', r.relation, r.alias), 'call reconciler.track() with the table that is meant'
        FROM r WHERE r.alias <> r.relname AND EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = r.relnamespace AND c.relname = r.alias AND c.relkind IN ('r', 'p', 'v', 'm', 'f'))
        UNION ALL
        SELECT x.name, format('%s has child tables (INHERITS), whose rows are not seen', x.relation), 'track the child tables too, or a view over all of them'
        FROM (SELECT r.name, r.relation FROM r UNION SELECT b.name, b.relation FROM base b) AS x JOIN pg_class c ON c.oid = x.relation AND c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid)
        UNION ALL
        SELECT r.name, format('nothing of it is captured: its triggers run as %I, which may not write the outbox; a sync every half minute finds what changes', f.role_name), format('SELECT reconciler.grant(%L, ''definer'');', f.role_name)
        FROM r JOIN reconciler.failing_writes() AS f ON f.resource = r.name
        UNION ALL
        SELECT DISTINCT r.name,
            format('none of its changes is made an apply: its triggers run as %I, which may not call begin_rollout()',
                o.rolname),
            format('SELECT reconciler.grant(%L, ''definer'');', o.rolname)
        FROM r CROSS JOIN LATERAL reconciler.capture_functions(r.id) AS f
        JOIN pg_proc p ON p.oid = f JOIN pg_roles o ON o.oid = p.proowner
        WHERE r.rollout IS NOT NULL
          AND has_function_privilege(o.oid, to_regprocedure('reconciler.begin_rollout(integer)'), 'EXECUTE') IS NOT TRUE
        UNION ALL
        SELECT r.name, format('row security of %s applies to %I, as which it is read: it cannot be read, and nothing of it is applied or deleted', h.guarded, o.rolname),
            CASE WHEN c.relforcerowsecurity AND pg_has_role(o.oid, c.relowner, 'USAGE') THEN format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY; or ', h.guarded) ELSE '' END
            || format('ALTER ROLE %I BYPASSRLS;', o.rolname) || CASE WHEN o.oid = v.relowner AND NOT pg_has_role(o.oid, c.relowner, 'USAGE') THEN ' or let the owner of the table call reconciler.track()' ELSE '' END
        FROM r JOIN pg_class v ON v.oid = r.desired CROSS JOIN LATERAL reconciler.hidden_rows(v.oid, v.relowner) AS h JOIN pg_class c ON c.oid = h.guarded JOIN pg_roles o ON o.oid = h.reader
    ), healable AS (
        SELECT r.name, format('view reconciler.%I is gone', 'desired_' || r.name) AS problem FROM r WHERE r.desired IS NULL
        UNION ALL
        SELECT r.name, format('trigger %I on %s is %s', p.trigger_name, p.relation, CASE WHEN p.found IS NULL THEN 'missing' WHEN p.found = 'D' THEN 'disabled' ELSE 'not enabled as it was created' END)
        FROM r CROSS JOIN LATERAL reconciler.places(r.id) AS p WHERE p.found IS DISTINCT FROM p.state
        UNION ALL
        -- With ignored columns the trigger's condition names the others; without a spec the objects have all columns.
        SELECT r.name, format('%s has other columns than when it was tracked: %s', r.relation, (
            SELECT string_agg(x.change, ', ' ORDER BY x.change) FROM (
                SELECT 'new ' || quote_ident(c) FROM unnest(r.columns) AS c WHERE c <> ALL (r.known)
                UNION ALL SELECT 'gone ' || quote_ident(c) FROM unnest(r.known) AS c WHERE c <> ALL (r.columns)) AS x(change)))
        FROM r WHERE (r.ignored <> '{}' OR r.spec IS NULL) AND r.name NOT IN (SELECT n.name FROM renamed n) AND NOT (r.columns <@ r.known AND r.known <@ r.columns)
        UNION ALL
        SELECT b.name, format('%s is read otherwise than when it was tracked: the trigger on it watches other columns', b.relation)
        FROM base b WHERE b.there AND b.desired IS NOT NULL AND b.watched IS DISTINCT FROM reconciler.watched_columns(b.desired, b.relation, b.base)
        UNION ALL
        SELECT r.name, CASE WHEN r.capture_version = -v.wanted THEN 'columns that its triggers read were renamed'
            ELSE format('its capture code is of version %s, not %s', r.capture_version, reconciler.capture_template()) END
        FROM r CROSS JOIN LATERAL reconciler.wanted_version(r.definition) AS v(wanted)
        WHERE r.capture_version NOT IN (0, v.wanted)
    )
    SELECT f.name, f.problem, f.remedy, false FROM found f
    UNION ALL
    -- DROP COLUMN ... CASCADE takes the view of a definition that needs the column. No other can be made from this one.
    SELECT h.name, h.problem, coalesce((
            SELECT 'call reconciler.track() with a definition that does not need column '
                || string_agg(quote_ident(c), ', ' ORDER BY c)
            FROM r, unnest(r.known) AS c WHERE r.name = h.name AND r.desired IS NULL AND c <> ALL (r.columns)),
        format('SELECT reconciler.regenerate(%L);', h.name)), true
    FROM healable h
$$;

CREATE FUNCTION reconciler.untrack(resource text, release text DEFAULT 'keep') RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r reconciler.resources;
    n bigint;
BEGIN
    IF release IS NULL OR release NOT IN ('keep', 'delete') THEN
        RAISE EXCEPTION 'release must be ''keep'' (targets keep the objects) or ''delete'' (they are deleted there), not %', coalesce(quote_literal(release), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM reconciler.lock_definitions();
    SELECT * INTO r FROM reconciler.resources x WHERE x.name = untrack.resource;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no resource is named %', quote_literal(untrack.resource) USING ERRCODE = 'undefined_object',
            HINT = coalesce('Resources: ' || (SELECT string_agg(name, ', ' ORDER BY name) FROM reconciler.resources), 'Nothing is tracked.');
    END IF;
    PERFORM reconciler.remove_capture(r.id);
    -- It writes nothing into the ledger: each owner deletes the objects of its target, and the leader removes the ledger rows of
    -- resources that are gone.
    n := (SELECT count(*) FROM reconciler.ledger l WHERE l.target_id IN (SELECT id FROM reconciler.targets) AND l.resource_id = r.id)
        + (SELECT coalesce(sum(cardinality(c.keys)), 0) FROM reconciler.first_calls c WHERE c.resource_id = r.id);
    PERFORM pg_notify('reconciler_control', '');
    IF release = 'keep' THEN
        DELETE FROM reconciler.resources x WHERE x.id = r.id;
        RETURN format('untracked %s; %s objects stay in their targets', r.name, n);
    END IF;
    UPDATE reconciler.resources x SET removed_at = clock_timestamp(), version = x.version + 1 WHERE x.id = r.id;
    INSERT INTO reconciler.outbox (resource_id) VALUES (r.id);
    IF n = 0 THEN
        RETURN format('untracked %s; it had no objects', r.name);
    END IF;
    RETURN format('%s objects of %s are being deleted%s', n, r.name, (
        SELECT format('; of them %s protected: these wait for approve()', count(*)) FROM reconciler.ledger l
        WHERE l.target_id IN (SELECT id FROM reconciler.targets) AND l.resource_id = r.id AND l.protected HAVING count(*) > 0));
END
$$;

-- regenerate generates the capture code again: of one resource, or of every one that is out of date. Of these, one that
-- cannot be generated keeps its old code, which works on, and keeps nobody else from the new one.
CREATE FUNCTION reconciler.regenerate(resource text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r reconciler.resources;
    n integer := 0;
BEGIN
    PERFORM reconciler.lock_definitions();
    IF NOT EXISTS (SELECT FROM reconciler.resources AS x WHERE x.name = regenerate.resource AND x.removed_at IS NULL) AND regenerate.resource IS NOT NULL THEN
        RAISE EXCEPTION 'no resource is named %', quote_literal(resource) USING ERRCODE = 'undefined_object';
    END IF;
    FOR r IN SELECT * FROM reconciler.resources AS x WHERE x.removed_at IS NULL
             AND (x.name = regenerate.resource OR regenerate.resource IS NULL AND x.capture_version <> reconciler.capture_template()) ORDER BY id LOOP
        BEGIN
            IF EXISTS (SELECT FROM reconciler.renamed_columns(r)) THEN
                -- The view has followed the columns. The definition would make another of it.
                PERFORM reconciler.check_owner(r.id), reconciler.install_functions(r);
                UPDATE reconciler.resources x SET capture_version = reconciler.wanted_version(x) WHERE x.id = r.id;
            ELSE
                PERFORM reconciler.install_capture(r.id);
            END IF;
            INSERT INTO reconciler.outbox (resource_id) VALUES (r.id);
            n := n + 1;
        EXCEPTION WHEN OTHERS THEN
            IF regenerate.resource IS NOT NULL THEN
                RAISE;
            END IF;
            RAISE WARNING 'capture of resource % stays as it was: %', r.name, SQLERRM;
        END;
    END LOOP;
    IF n > 0 THEN
        PERFORM pg_notify('reconciler_control', '');
    END IF;
    RETURN n;
END
$$;

-- set_notify switches NOTIFY in all capture triggers on or off (prepared transactions cannot NOTIFY).
CREATE FUNCTION reconciler.set_notify(enabled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r reconciler.resources;
BEGIN
    IF enabled IS NULL THEN
        RAISE EXCEPTION 'enabled must be true or false, not NULL' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT has_table_privilege('reconciler.settings', 'UPDATE') THEN
        RAISE EXCEPTION 'role % may not switch NOTIFY', quote_ident(current_user) USING ERRCODE = 'insufficient_privilege',
            HINT = format('Only %s, the owner of schema reconciler, may.', (SELECT quote_ident(pg_get_userbyid(nspowner)) FROM pg_namespace WHERE nspname = 'reconciler'));
    END IF;
    -- A track() at the same time would generate code for the other setting.
    PERFORM reconciler.lock_definitions();
    UPDATE reconciler.settings SET notify = enabled WHERE notify <> enabled;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR r IN SELECT * FROM reconciler.resources WHERE removed_at IS NULL ORDER BY id LOOP
        PERFORM reconciler.install_functions(r);
    END LOOP;
    PERFORM pg_notify('reconciler_control', '');
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.track IS 'Makes a resource from a table or view. key names columns; target, running, spec and protect are SQL expressions over its row. Idempotent. Returns created, replaced or unchanged.';
COMMENT ON FUNCTION reconciler.define IS 'Internal: what track() does.';
COMMENT ON FUNCTION reconciler.check_definer IS 'Internal: rights that track() needs.';
COMMENT ON FUNCTION reconciler.check_ignored IS 'Internal: checks the ignored columns of track().';
COMMENT ON FUNCTION reconciler.whole_row_spec IS 'Internal: the spec when track() is given none.';
COMMENT ON FUNCTION reconciler.bind_condition IS 'Internal: binds a boolean expression of track().';
COMMENT ON FUNCTION reconciler.bind_definition IS 'Internal: binds the expressions of track().';
COMMENT ON FUNCTION reconciler.check_base_tables IS 'Internal: checks what only views and other relations without triggers need.';
COMMENT ON FUNCTION reconciler.store_definition IS 'Internal: writes a definition down.';
COMMENT ON FUNCTION reconciler.untrack IS 'Undoes track(). release => ''keep'' leaves the objects in their targets, ''delete'' deletes them.';
COMMENT ON FUNCTION reconciler.unqualified IS 'Internal: an expression over one table without its name.';
COMMENT ON FUNCTION reconciler.index_advice IS 'The CREATE INDEX that syncs of a resource would profit from, or NULL.';
COMMENT ON FUNCTION reconciler.advise_index IS 'Internal: tells about a missing index.';
COMMENT ON FUNCTION reconciler.failing_writes IS 'Internal: resources whose triggers may not write the outbox, and capture nothing.';
COMMENT ON FUNCTION reconciler.check_hidden_rows IS 'Internal: refuses what would be read through row security.';
COMMENT ON FUNCTION reconciler.capture_problems IS 'What is wrong with the triggers and views of resources, and what mends it.';
COMMENT ON FUNCTION reconciler.regenerate IS 'Generates the capture code of a resource again (all out-of-date ones when none is named), and has it synced.';
COMMENT ON FUNCTION reconciler.set_notify IS 'Switches NOTIFY in all capture triggers on or off. Off allows PREPARE TRANSACTION; changes are then found by polling.';

-- +goose Down
DROP FUNCTION reconciler.set_notify, reconciler.regenerate, reconciler.untrack, reconciler.capture_problems, reconciler.failing_writes, reconciler.advise_index, reconciler.index_advice, reconciler.unqualified,
    reconciler.track, reconciler.define, reconciler.store_definition, reconciler.check_base_tables, reconciler.bind_definition, reconciler.bind_condition, reconciler.whole_row_spec, reconciler.check_ignored, reconciler.check_hidden_rows, reconciler.check_definer;
