-- +goose Up

-- Capture: the triggers that write the outbox, generated for each resource with literal columns.

-- +goose StatementBegin
CREATE FUNCTION reconciler.sleep_lock() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 7165064744911531379 $$;

-- lock_definitions keeps whoever generates code of resources apart, to the end of the transaction. It waits for at most 10 s,
-- or for lock_timeout, and then says who is in the way. It asks again and again: after a subtransaction, which catching an
-- error would take, nobody could see who has the lock. Its rights are the schema owner's, so that only roles that may define
-- resources can take the lock, and need none on the table.
CREATE FUNCTION reconciler.lock_definitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    patience interval := current_setting('lock_timeout');
    until    timestamptz := clock_timestamp() + CASE WHEN patience = '0' THEN '10s' ELSE least(patience, '10s') END;
BEGIN
    LOOP
        PERFORM FROM reconciler.locks l WHERE l.name = 'definitions' FOR UPDATE SKIP LOCKED;
        EXIT WHEN FOUND;
        IF clock_timestamp() > until THEN
            RAISE EXCEPTION 'resources are being defined in another transaction: %', coalesce((SELECT string_agg(d.holder, '; ') FROM reconciler.defining() AS d), 'one that cannot be named')
                USING ERRCODE = 'lock_not_available', HINT = 'Nothing was changed. End that transaction, or try again when it has ended.';
        END IF;
        PERFORM pg_sleep(0.02);
    END LOOP;
END
$$;

-- defining says who holds that lock: processes, and prepared transactions, which have none.
CREATE FUNCTION reconciler.defining() RETURNS TABLE (holder text, since timestamptz, remedy text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH held AS (
        SELECT x.pid, x.virtualtransaction FROM reconciler.locks l JOIN pg_locks x ON x.locktype = 'transactionid' AND x.transactionid = l.xmax AND x.granted AND x.mode = 'ExclusiveLock'
        WHERE l.name = 'definitions' AND l.xmax <> '0' AND x.pid IS DISTINCT FROM pg_backend_pid()
    )
    SELECT format('pid %s (%s, user %s)', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'), a.usename), a.xact_start, format('End it, or: SELECT pg_terminate_backend(%s);', a.pid)
    FROM held h JOIN pg_stat_activity a ON a.pid = h.pid
    UNION ALL
    SELECT format('prepared transaction %s', quote_literal(p.gid)), p.prepared, format('COMMIT PREPARED %1$L; or ROLLBACK PREPARED %1$L;', p.gid)
    FROM held h JOIN pg_locks x ON x.virtualtransaction = h.virtualtransaction AND x.locktype = 'transactionid' JOIN pg_prepared_xacts p ON p.transaction = x.transactionid WHERE h.pid IS NULL
$$;

-- wake_code is the last step of a capture function. The leader holds the lock while it sleeps and only then
-- wants to be notified: NOTIFY makes all commits of the cluster queue for one lock. The probe is released at once,
-- never at commit: a probe held by a long transaction would keep the leader from going to sleep. Taken and released it is
-- in one expression: PL/pgSQL evaluates that by itself, where PERFORM runs a query.
CREATE FUNCTION reconciler.wake_code() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN notify THEN format($code$
    IF NOT (pg_catalog.pg_try_advisory_lock_shared(%1$s) AND pg_catalog.pg_advisory_unlock_shared(%1$s)) THEN
        PERFORM pg_catalog.pg_notify('reconciler_wake', '');
    END IF;$code$, reconciler.sleep_lock()) ELSE '' END FROM reconciler.settings
$$;

-- end_code is what every capture function ends with. For a resource whose changes are to roll out it makes those of the
-- transaction an apply. Where that fails, whatever the reason, they are applied as if there was none: no user's write
-- ever fails for it.
CREATE FUNCTION reconciler.end_code(r reconciler.resources) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT concat(CASE WHEN r.rollout IS NOT NULL THEN format($code$
    BEGIN
        PERFORM reconciler.begin_rollout(%s);
    EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN
        RAISE WARNING 'changes of resource %s are applied at once, as they could not be made an apply: %%', SQLERRM;
    END;$code$, r.id, r.name) END, reconciler.wake_code())
$$;

-- rights_code ends a capture function whose owner may not write the outbox (any more: REASSIGN OWNED BY, a right that was
-- taken): no user's write ever fails for that. The leader sees it, see failing_writes, and has the resource synced meanwhile.
-- The table goes by its number, which costs a third of its name; in a reloaded database that may be no table's or another's,
-- so "no" is asked again by name.
CREATE FUNCTION reconciler.rights_code(r reconciler.resources) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format($code$
    IF (%s) IS NOT TRUE THEN
        IF (CASE WHEN pg_catalog.has_schema_privilege('reconciler', 'USAGE') THEN %s END) IS NOT TRUE THEN
            RETURN NULL;
        END IF;
    END IF;$code$,
        format($code$pg_catalog.has_table_privilege(%s::pg_catalog.oid, 'INSERT')$code$,
            'reconciler.outbox'::regclass::oid),
        $code$pg_catalog.has_table_privilege('reconciler.outbox', 'INSERT')
            AND pg_catalog.has_sequence_privilege('reconciler.outbox_seq', 'USAGE')$code$)
$$;

-- capture_template is the version of the code that the functions below generate. Grow it with every change of theirs:
-- `reconciler migrate up` then generates the capture code of every resource again.
CREATE FUNCTION reconciler.capture_template() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 1 $$;

-- pinned_settings is the SET clauses of what evaluates users' expressions: everything that changes what one gives, as in the
-- reconciler's own sessions (internal/database). With row security off a query that it would hide rows from fails.
CREATE FUNCTION reconciler.pinned_settings() RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT $code$SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO, MDY' SET "IntervalStyle" = 'iso_8601' SET extra_float_digits = 1
SET bytea_output = 'hex' SET lc_monetary = 'C' SET lc_numeric = 'C' SET lc_time = 'C' SET quote_all_identifiers = off SET xmlbinary = 'base64' SET row_security = off$code$
$$;

-- function_code wraps a body. It is quoted as a literal: a dollar quote could stand in it. Each SET costs a tenth of what a body
-- does, so only those whose expressions a setting could change pin more than the search path.
CREATE FUNCTION reconciler.function_code(name text, resource text, body text, settings text DEFAULT 'SET search_path = pg_catalog, pg_temp') RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('CREATE OR REPLACE FUNCTION reconciler.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER %s AS %L',
        name, settings, format(E'\n-- Generated by reconciler.track for resource %s; do not edit.\n', resource) || body)
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.wake_code IS 'Internal: code that wakes the leader.';
COMMENT ON FUNCTION reconciler.end_code IS 'Internal: last step of generated capture functions.';
COMMENT ON FUNCTION reconciler.rights_code IS 'Internal: code that spares users'' writes when the owner of a capture function lacks rights.';
COMMENT ON FUNCTION reconciler.pinned_settings IS 'Internal: settings under which expressions of users are evaluated.';
COMMENT ON FUNCTION reconciler.lock_definitions IS 'Internal: one transaction at a time defines resources.';
COMMENT ON FUNCTION reconciler.defining IS 'Internal: which transactions define resources.';
COMMENT ON FUNCTION reconciler.sleep_lock IS 'Advisory lock that the leader holds while it sleeps and wants to be notified.';
COMMENT ON FUNCTION reconciler.capture_template IS 'Version of the generated capture code.';
COMMENT ON FUNCTION reconciler.function_code IS 'Internal: code of a trigger function around a body.';

-- +goose StatementBegin
-- renumbered says whether columns cannot be known by their numbers: a loaded dump numbers them anew where some had been
-- dropped.
CREATE FUNCTION reconciler.renumbered(relation regclass, known text[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (SELECT c.relnatts FROM pg_class c WHERE c.oid = relation) < cardinality(known)
        OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
                   AND a.attnum <= cardinality(known) AND known[a.attnum] IS NULL)
$$;

-- is_another says whether a name that was a column's is now that of another one.
CREATE FUNCTION reconciler.is_another(relation regclass, known text[], name text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT reconciler.renumbered(relation, known) AND EXISTS (SELECT FROM pg_attribute a
        WHERE a.attrelid = relation AND a.attname = name AND a.attnum > 0 AND known[a.attnum] IS DISTINCT FROM name)
$$;

-- renamed_columns returns the columns that the desired view reads and that had another name when the definition was bound.
-- The view follows them. The definition does not, and may now name other columns. Without their numbers, only a name that
-- was not known is another one.
CREATE FUNCTION reconciler.renamed_columns(r reconciler.resources) RETURNS TABLE (old_name text, new_name text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH read AS (
        SELECT a.attname::text AS name, r.known_columns[a.attnum] AS known
        FROM pg_rewrite w
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid
            AND d.refclassid = 'pg_class'::regclass AND d.refobjid = r.relation AND d.refobjsubid > 0
        JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE w.ev_class = to_regclass(format('reconciler.%I', 'desired_' || r.name))
    ), n AS (SELECT reconciler.renumbered(r.relation, r.known_columns) AS renumbered)
    SELECT v.known, v.name FROM read v, n WHERE NOT n.renumbered AND v.known IS DISTINCT FROM v.name
    UNION ALL
    SELECT k, v.name FROM read v, n, unnest(r.known_columns) AS k
    WHERE n.renumbered AND v.name <> ALL (array_remove(r.known_columns, NULL))
      AND k <> ALL (reconciler.columns_of(r.relation))
$$;

-- wanted_version is what capture_version of a resource should be. Negative: the code is made for a definition that does not know
-- the names of the columns.
CREATE FUNCTION reconciler.wanted_version(r reconciler.resources) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM reconciler.renamed_columns(r)) THEN -1 ELSE 1 END * reconciler.capture_template()
$$;

-- everywhere_expression gives {NULL, key}, which marks the object at every target, or {NULL, NULL}, which marks the whole
-- resource, where a key column was renamed. What cannot be evaluated protects: see place_expression.
CREATE FUNCTION reconciler.everywhere_expression(r reconciler.resources) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('ARRAY[NULL, %s%s]::text[]', CASE
        WHEN EXISTS (SELECT FROM reconciler.renamed_columns(r) AS c WHERE c.old_name = ANY (r.key_columns)) THEN 'NULL'
        ELSE reconciler.key_expression(r.alias, r.key_columns, r.key_types) END, CASE WHEN r.protect IS NOT NULL THEN ', true' END)
$$;

-- place_expression gives {target, key} of the object that a row asks for, NULL when it does not run; with protect
-- {target, key, whether the row protects it}. The row goes by the table's name, as in bound expressions.
CREATE FUNCTION reconciler.place_expression(r reconciler.resources) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN EXISTS (SELECT FROM reconciler.renamed_columns(r)) THEN reconciler.everywhere_expression(r)
        ELSE format('CASE WHEN (%s) IS TRUE THEN ARRAY[(%s)::text, %s%s] END', r.running_bound, r.target_bound,
            reconciler.key_expression(r.alias, r.key_columns, r.key_types),
            CASE WHEN r.protect IS NOT NULL THEN format(', ((%s) IS NOT FALSE)::text', r.protect_bound) END) END
$$;

-- assign_code assigns what an expression gives for a row of the trigger, OLD or NEW, to a variable. No function takes the row as
-- its argument: PostgreSQL refuses most of ALTER TABLE while one with a parsed body does, and one without is parsed under the
-- writer's search path.
CREATE FUNCTION reconciler.assign_code(r reconciler.resources, variable text, row_name text, expression text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    -- Quoted in any case: words of PL/pgSQL are none of SQL.
    SELECT format(E'DECLARE "%s" ALIAS FOR %s; BEGIN %s := %s; END;',
        replace(r.alias, '"', '""'), row_name, variable, reconciler.plpgsql_text(expression))
$$;

-- needs_settings says whether what target, running and protect give could depend on a setting of the session. It cannot when
--  * they turn no value into text but that of a string or enum column: how float8, interval, bytea, xml and others print
--    counts as immutable, and depends on settings all the same. || and quote_literal() turn whatever they get into text;
--  * they depend on nothing but the table, enums and what is PostgreSQL's own: a user's function may look up names;
--  * PostgreSQL itself finds them immutable: it takes them into an index.
-- A plain column as target is harmless, and so is the key: see target_text and key_text.
CREATE FUNCTION reconciler.needs_settings(r reconciler.resources) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    name  text := 'pure_' || md5(random()::text || clock_timestamp()::text);
    place text := CASE WHEN EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = r.relation AND a.attnum > 0 AND NOT a.attisdropped
        AND r.target_bound IN (format('%I.%I', r.alias, a.attname), reconciler.target_text(format('%I.%I', r.alias, a.attname), a.atttypid))) THEN 'NULL' ELSE r.target_bound END;
    pure  boolean;
BEGIN
    IF reconciler.without_harmless_casts(r, concat_ws(' ', place, r.running_bound, r.protect_bound)) ~* '::|[|][|]|quote_|xml' OR NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = r.relation) THEN
        RETURN true;
    END IF;
    BEGIN
        EXECUTE format('CREATE FUNCTION reconciler.%I(%I %s) RETURNS integer LANGUAGE sql STABLE BEGIN ATOMIC SELECT num_nulls((%s), (%s), (%s)); END',
            name, r.alias, r.relation, r.running_bound, place, r.protect_bound);
    EXCEPTION WHEN undefined_column OR undefined_table OR undefined_function OR undefined_object OR datatype_mismatch THEN
        RETURN true; -- it does not fit its table any more
    END;
    pure := NOT EXISTS (
        SELECT FROM pg_depend d LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
        WHERE d.classid = 'pg_proc'::regclass AND d.objid = to_regproc(format('reconciler.%I', name))
          AND d.refclassid NOT IN ('pg_namespace'::regclass, 'pg_collation'::regclass) AND d.refobjid <> r.relation
          AND NOT coalesce(t.typrelid = r.relation OR t.typtype = 'e' OR t.typelem IN (SELECT e.oid FROM pg_type e WHERE e.typtype = 'e'), false));
    IF pure THEN
        BEGIN
            -- What it calls is looked at, not how it is declared: PostgreSQL puts the body of such a function in its place.
            EXECUTE format('CREATE TABLE reconciler.%1$I (%1$I %2$s); CREATE INDEX ON reconciler.%1$I (reconciler.%1$I(%1$I)); DROP TABLE reconciler.%1$I', name, r.relation);
        EXCEPTION WHEN invalid_object_definition OR feature_not_supported THEN
            pure := false;
        END;
    END IF;
    EXECUTE format('DROP FUNCTION reconciler.%I', name);
    RETURN NOT pure;
END
$$;

-- without_harmless_casts takes the casts of literals, and of columns that are text by nature, away from bound expressions.
CREATE FUNCTION reconciler.without_harmless_casts(r reconciler.resources, bound text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    type constant text := '(::["a-z0-9_. ]+([(][0-9,]+[)])?([[][]])*)*';
    col  name;
BEGIN
    bound := regexp_replace(bound, $re$(?:E?'(?:[^']|'')*'|\mNULL)$re$ || type, 'L', 'g');
    bound := regexp_replace(bound, '[(]-? ?[0-9.]+[)]' || type, 'L', 'g');
    bound := regexp_replace(bound, '[(]ARRAY[[][L0-9., ]*[]][)]' || type, 'L', 'g');
    FOR col IN SELECT a.attname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
               WHERE a.attrelid = r.relation AND a.attnum > 0 AND NOT a.attisdropped AND (t.typcategory = 'S' OR t.typtype = 'e') LOOP
        bound := replace(bound, format('(%I.%I)::text', r.alias, col), 'C');
    END LOOP;
    RETURN bound;
END
$$;

-- bounds_code keeps from the outbox what no config and no index can hold: every reader would have to take it. See unfit.
CREATE FUNCTION reconciler.bounds_code() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format(E'\n    IF %s THEN%s\n    END IF;', string_agg(c.condition, ' OR ' ORDER BY c.n),
        string_agg(format(E'\n        IF %s THEN\n            %s := %s;\n        END IF;', c.condition, c.part, reconciler.shortened_code(c.part)), '' ORDER BY c.n))
    FROM (SELECT p.n, p.part, format('pg_catalog.octet_length(%s) OPERATOR(pg_catalog.>) %s', p.part, p.most) AS condition
          FROM (VALUES (1, '"{new}"[1]', 63), (2, '"{new}"[2]', 2000), (3, '"{old}"[1]', 63), (4, '"{old}"[2]', 2000)) AS p(n, part, most)) AS c
$$;

-- row_function_code is the trigger function of a tracked table. Evaluation of the user's expressions is guarded: a row that
-- they fail on, or a column that is gone or has another name, never fails the user's write. It then marks the row for every
-- target, or the whole resource when not even the key can be read. Nothing is written inside the guard, so it costs no
-- transaction id. Its variables have names that no table or column has; a table that has one all the same is marked whole.
CREATE FUNCTION reconciler.row_function_code(r reconciler.resources) RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT reconciler.function_code('capture_' || r.id, r.name, format($fn$
#variable_conflict use_column
DECLARE
    "{old}" text[]; "{new}" text[]; -- see place_expression
BEGIN
    BEGIN%2$s
        IF TG_OP <> 'DELETE' THEN
            %3$s
        END IF;
        IF TG_OP <> 'INSERT' THEN
            %4$s
            IF %10$s THEN
                "{old}" := NULL;
            END IF;
        END IF;
    EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN
        "{old}" := NULL; "{new}" := NULL;
        BEGIN
            IF TG_OP <> 'INSERT' THEN
                %5$s
            END IF;
            IF TG_OP <> 'DELETE' THEN
                %6$s
            END IF;
            IF %10$s THEN
                "{old}" := NULL;
            END IF;
        EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN
            "{old}" := NULL; "{new}" := '{NULL,NULL}';
        END;
    END;%7$s%8$s
    IF "{old}" IS NOT NULL THEN
        INSERT INTO reconciler.outbox (resource_id, target, key%11$s) VALUES (%1$s, "{old}"[1], "{old}"[2]%12$s);
    END IF;
    IF "{new}" IS NOT NULL THEN
        INSERT INTO reconciler.outbox (resource_id, target, key%11$s) VALUES (%1$s, "{new}"[1], "{new}"[2]%13$s);
    ELSIF "{old}" IS NULL THEN
        RETURN NULL;
    END IF;%9$s
    RETURN NULL;
END
$fn$, r.id,
        -- Where columns are ignored the trigger has a condition. It costs more than this, but spares the call.
        CASE WHEN r.ignored = '{}' THEN $code$
        IF TG_OP = 'UPDATE' AND record_image_eq(OLD, NEW) THEN
            RETURN NULL;
        END IF;$code$ END,
        reconciler.assign_code(r, '"{new}"', 'new', e.place), reconciler.assign_code(r, '"{old}"', 'old', e.place),
        reconciler.assign_code(r, '"{old}"', 'old', e.everywhere), reconciler.assign_code(r, '"{new}"', 'new', e.everywhere),
        reconciler.rights_code(r), reconciler.bounds_code(), reconciler.end_code(r),
        CASE WHEN r.protect IS NULL THEN '"{old}" = "{new}"' ELSE '"{old}"[:2] = "{new}"[:2]' END,
        CASE WHEN r.protect IS NOT NULL THEN ', protect' END,
        CASE WHEN r.protect IS NOT NULL THEN ', "{old}"[3]::pg_catalog.bool' END,
        CASE WHEN r.protect IS NOT NULL THEN ', "{new}"[3]::pg_catalog.bool' END),
        CASE WHEN reconciler.needs_settings(r) THEN reconciler.pinned_settings() ELSE 'SET search_path = pg_catalog, pg_temp' END)
    FROM (SELECT reconciler.place_expression(r) AS place, reconciler.everywhere_expression(r) AS everywhere) AS e
$$;

-- truncate_function_code: a TRUNCATE concerns the whole resource.
CREATE FUNCTION reconciler.truncate_function_code(r reconciler.resources) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT reconciler.function_code(format('capture_%s_truncate', r.id), r.name, format($fn$
BEGIN%2$s
    INSERT INTO reconciler.outbox (resource_id) VALUES (%1$s);%3$s
    RETURN NULL;
END
$fn$, r.id, reconciler.rights_code(r), reconciler.end_code(r)))
$$;

-- dependency_function_code is the trigger function of a base table of a joined resource: it writes down the old and
-- the new values that lead to the objects. Finding them is not the user's transaction's work.
CREATE FUNCTION reconciler.dependency_function_code(r reconciler.resources, d reconciler.dependencies) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT reconciler.function_code(format('capture_%s_from_%s', r.id, d.id), r.name, format($fn$
DECLARE
    old_image_ jsonb; new_image_ jsonb;
BEGIN%6$s
    BEGIN%7$s
        IF TG_OP <> 'INSERT' THEN
            old_image_ := jsonb_build_object(%3$s);
        END IF;
        IF TG_OP <> 'DELETE' THEN
            new_image_ := jsonb_build_object(%4$s);
        END IF;
        IF pg_column_size(old_image_) > 8000 OR pg_column_size(new_image_) > 8000 THEN
            RAISE EXCEPTION 'too long';
        END IF;
    EXCEPTION WHEN OTHERS THEN
        -- A column was renamed, or a value is too long to be looked up by.
        INSERT INTO reconciler.outbox (resource_id) VALUES (%1$s);%5$s
        RETURN NULL;
    END;
    IF old_image_ IS NOT NULL AND old_image_ IS DISTINCT FROM new_image_ THEN
        INSERT INTO reconciler.outbox (resource_id, dependency_id, image) VALUES (%1$s, %2$s, old_image_);
    END IF;
    IF new_image_ IS NOT NULL THEN
        INSERT INTO reconciler.outbox (resource_id, dependency_id, image) VALUES (%1$s, %2$s, new_image_);
    END IF;%5$s
    RETURN NULL;
END
$fn$, r.id, d.id,
        (SELECT string_agg(format('%L, %s', c, reconciler.plpgsql_text(reconciler.link_value('old', d.relation, b))), ', ' ORDER BY n) FROM unnest(d.base, d.columns) WITH ORDINALITY AS p(b, c, n)),
        (SELECT string_agg(format('%L, %s', c, reconciler.plpgsql_text(reconciler.link_value('new', d.relation, b))), ', ' ORDER BY n) FROM unnest(d.base, d.columns) WITH ORDINALITY AS p(b, c, n)),
        reconciler.end_code(r), reconciler.rights_code(r),
        CASE WHEN (SELECT bool_or(reconciler.is_another(d.relation, d.known_columns, b)) FROM unnest(d.base) AS b)
            THEN E'\n        RAISE EXCEPTION ''a column has the name of another one'';' END))
$$;

-- changed_condition is the WHEN of an update trigger, where it has one. With every column watched it compares whole rows, so
-- it names no column and stands in the way of no ALTER TABLE; images, because json and xml have no equality. A function,
-- because pg_dump prints ROW(...) *<> ROW(...) in a way that means something else when it is loaded.
CREATE FUNCTION reconciler.changed_condition(watched text[]) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN watched IS NULL THEN 'pg_catalog.record_image_ne(OLD.*, NEW.*)'
        WHEN cardinality(watched) = 0 THEN 'false'
        ELSE (SELECT format('pg_catalog.record_image_ne(ROW(%s), ROW(%s))', string_agg(format('OLD.%I', c), ', ' ORDER BY n), string_agg(format('NEW.%I', c), ', ' ORDER BY n))
              FROM unnest(watched) WITH ORDINALITY AS w(c, n)) END
$$;

-- partitions returns a table and all of its partitions. pg_partition_tree() would lock each of them until the end of the transaction: it
-- waits for DDL of users, and deadlocks with it.
CREATE FUNCTION reconciler.partitions(relation regclass) RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE tree AS (
        SELECT partitions.relation::oid AS id
        UNION ALL
        SELECT i.inhrelid
        FROM tree t
        JOIN pg_class c ON c.oid = t.id AND c.relkind = 'p'
        JOIN pg_inherits i ON i.inhparent = t.id AND NOT i.inhdetachpending
    )
    SELECT t.id FROM tree t
$$;

-- places lists the triggers that a resource should have: where, by which name, in which state. Row triggers are cloned to
-- partitions; TRUNCATE triggers are not, and TRUNCATE may name a partition (but triggers on foreign ones it may not have).
CREATE FUNCTION reconciler.places(resource_id integer) RETURNS TABLE (root regclass, relation regclass, function_name text, suffix text, trigger_name text, state "char", found "char", oid oid)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH roots AS (
        SELECT r.relation, 'capture_' || r.id AS fn, r.always FROM reconciler.resources r WHERE r.id = places.resource_id AND r.relation_kind IN ('r', 'p')
        UNION ALL
        SELECT d.relation, format('capture_%s_from_%s', r.id, d.id), r.always FROM reconciler.dependencies d JOIN reconciler.resources r ON r.id = d.resource_id WHERE r.id = places.resource_id
    )
    SELECT f.relation, p.oid::regclass, f.fn, s.suffix, format('reconciler_%s%s', f.fn, s.suffix), CASE WHEN f.always THEN 'A' ELSE 'O' END::"char", g.tgenabled, g.oid
    FROM roots f
    CROSS JOIN LATERAL reconciler.partitions(f.relation) AS t(oid)
    JOIN pg_class p ON p.oid = t.oid
    CROSS JOIN (VALUES (''), ('_update'), ('_truncate')) AS s(suffix)
    LEFT JOIN pg_trigger g ON g.tgrelid = p.oid AND g.tgname = format('reconciler_%s%s', f.fn, s.suffix)
    WHERE p.relkind IN ('r', 'p') OR s.suffix <> '_truncate'
$$;

-- create_triggers puts the three triggers of a capture function on a table and its partitions. What is there already and
-- as it should be stays: each statement waits for all writers of the table. The condition's hash is an argument of the
-- update trigger, which is how a changed one is told.
CREATE FUNCTION reconciler.create_triggers(resource_id integer, relation regclass, function_name text, condition text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p record;
BEGIN
    IF EXISTS (SELECT FROM reconciler.places(resource_id) AS x WHERE x.function_name = create_triggers.function_name AND x.suffix = '' AND x.found IS DISTINCT FROM x.state) THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER INSERT OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION reconciler.%I()',
            'reconciler_' || function_name, relation, function_name);
    END IF;
    IF EXISTS (SELECT FROM reconciler.places(resource_id) AS x LEFT JOIN pg_trigger g ON g.oid = x.oid WHERE x.function_name = create_triggers.function_name AND x.suffix = '_update'
               AND (x.found IS DISTINCT FROM x.state OR encode(g.tgargs, 'escape') <> md5(condition) || E'\\000')) THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER UPDATE ON %s FOR EACH ROW %s EXECUTE FUNCTION reconciler.%I(%L)',
            'reconciler_' || function_name || '_update', relation, CASE WHEN condition <> '' THEN format('WHEN (%s)', condition) END, function_name, md5(condition));
    END IF;
    FOR p IN SELECT * FROM reconciler.places(resource_id) AS x WHERE x.function_name = create_triggers.function_name AND x.suffix = '_truncate' AND x.found IS DISTINCT FROM x.state LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION reconciler.%I()',
            p.trigger_name, p.relation, format('capture_%s_truncate', resource_id));
    END LOOP;
    -- This one needs the table's owner, so it is for what is not as CREATE TRIGGER leaves it.
    FOR p IN SELECT * FROM reconciler.places(resource_id) AS x WHERE x.function_name = create_triggers.function_name AND x.found IS DISTINCT FROM x.state LOOP
        EXECUTE format('ALTER TABLE %s ENABLE %s TRIGGER %I', p.relation, CASE p.state WHEN 'A' THEN 'ALWAYS' ELSE '' END, p.trigger_name);
    END LOOP;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.renumbered IS 'Internal: whether a loaded dump has numbered columns anew.';
COMMENT ON FUNCTION reconciler.is_another IS 'Internal: whether the name of a column is now that of another one.';
COMMENT ON FUNCTION reconciler.renamed_columns IS 'Internal: columns whose names a definition does not know.';
COMMENT ON FUNCTION reconciler.wanted_version IS 'Internal: version of the capture code that a resource should have.';
COMMENT ON FUNCTION reconciler.everywhere_expression IS 'Internal: SQL that marks an object at every target.';
COMMENT ON FUNCTION reconciler.place_expression IS 'Internal: SQL for the object that a row asks for.';
COMMENT ON FUNCTION reconciler.assign_code IS 'Internal: code that evaluates an expression over a row of a trigger.';
COMMENT ON FUNCTION reconciler.needs_settings IS 'Internal: whether a capture function must pin settings.';
COMMENT ON FUNCTION reconciler.without_harmless_casts IS 'Internal: expressions without casts that no setting changes.';
COMMENT ON FUNCTION reconciler.bounds_code IS 'Internal: code that keeps what is too long from the outbox.';
COMMENT ON FUNCTION reconciler.partitions IS 'Internal: a table and its partitions, without a lock.';
COMMENT ON FUNCTION reconciler.row_function_code IS 'Internal: code of a capture function.';
COMMENT ON FUNCTION reconciler.truncate_function_code IS 'Internal: code of a capture function for TRUNCATE.';
COMMENT ON FUNCTION reconciler.dependency_function_code IS 'Internal: code of a capture function of a base table.';
COMMENT ON FUNCTION reconciler.changed_condition IS 'Internal: WHEN clause of an update trigger.';
COMMENT ON FUNCTION reconciler.places IS 'Internal: the triggers that a resource should have, and whether it has them.';
COMMENT ON FUNCTION reconciler.create_triggers IS 'Internal: creates the triggers of a capture function.';

-- +goose StatementBegin
-- desired_view_code is the view through which loads and syncs read the rows. Its typed key columns let the indexes
-- of the user's table be used; and PostgreSQL refuses to drop a column that it needs.
CREATE FUNCTION reconciler.desired_view_code(r reconciler.resources) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format(E'CREATE VIEW reconciler.%I AS SELECT (%s)::text AS target, %s AS key, (%s) AS running, %s AS spec, %s AS match, (%s) AS protect%s%s\nFROM %s %s AS %I',
        'desired_' || r.name, r.target_bound, reconciler.key_expression(r.alias, r.key_columns, r.key_types), r.running_bound, r.spec_bound,
        CASE WHEN cardinality(r.match_columns) = 0 THEN 'NULL::jsonb'
             ELSE (SELECT format('jsonb_build_object(%s)', string_agg(format('%L, %s', c, reconciler.link_value(r.alias, r.relation, c)), ', ' ORDER BY n)) FROM unnest(r.match_columns) WITH ORDINALITY AS m(c, n)) END,
        r.protect_bound,
        (SELECT string_agg(format(', %s AS key_%s', reconciler.plain_column(r.alias, r.relation, c), n), '' ORDER BY n)
         FROM unnest(r.key_columns) WITH ORDINALITY AS k(c, n)),
        (SELECT coalesce(string_agg(format(', %s AS match_%s', reconciler.plain_column(r.alias, r.relation, c), n), '' ORDER BY n), '')
         FROM unnest(r.match_columns) WITH ORDINALITY AS m(c, n)),
        -- Triggers see no rows of child tables, so these are none of its rows.
        CASE r.relation_kind WHEN 'r' THEN 'ONLY' ELSE '' END, r.relation, r.alias)
$$;

-- create_desired_view replaces the view. It fails when the definition does not fit its relation any more.
CREATE FUNCTION reconciler.create_desired_view(r reconciler.resources) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := 'desired_' || r.name;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = r.relation) THEN
        RAISE EXCEPTION 'resource %: %, which it is made from, is gone', r.name, quote_ident(r.alias) USING ERRCODE = 'undefined_table',
            HINT = format('SELECT reconciler.untrack(%L);', r.name);
    END IF;
    IF to_regclass(format('reconciler.%I', name)) IS NOT NULL THEN
        EXECUTE format('DROP VIEW reconciler.%I', name);
    END IF;
    BEGIN
        EXECUTE reconciler.desired_view_code(r);
    EXCEPTION WHEN undefined_column OR undefined_table OR undefined_function OR undefined_object OR datatype_mismatch THEN
        RAISE EXCEPTION 'resource %: its definition does not fit % any more: %', r.name, r.relation, SQLERRM USING ERRCODE = SQLSTATE,
            HINT = 'Call reconciler.track() with the new names.';
    END;
    EXECUTE format('COMMENT ON VIEW reconciler.%I IS %L', name, format(
        'What the rows of resource %s ask for. Generated, with triggers named reconciler_capture_%s... '
        'To drop or retype a column that it reads, in one transaction: '
        'DROP VIEW reconciler.%I; ALTER TABLE ...; SELECT reconciler.track(%L, ...); '
        'If the error names such a trigger, drop that first as well.', r.name, r.id, name, r.name));
    PERFORM reconciler.copy_view_grants(name);
END
$$;

-- bound_lock_timeout limits how long the rest of the transaction may wait for a lock, and returns what the limit was. A
-- queue behind a long transaction would stop the user's writers.
CREATE FUNCTION reconciler.bound_lock_timeout() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    IF before = '0' OR before::interval > '3s' THEN
        PERFORM set_config('lock_timeout', '3s', true);
    END IF;
    RETURN before;
END
$$;

-- lock_failed says who holds the tables. CREATE TRIGGER waits for writers, DROP for everybody.
CREATE FUNCTION reconciler.lock_failed(relations regclass[], purpose text, behind_readers boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    busy   text;
    holder text;
BEGIN
    SELECT l.relation::regclass::text, string_agg(format('pid %s (%s, user %s, transaction open for %s: %s)', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'), a.usename,
               justify_interval(date_trunc('second', clock_timestamp() - a.xact_start)), left(a.query, 80)), '; ' ORDER BY a.xact_start)
    INTO busy, holder
    FROM (SELECT DISTINCT x.pid, x.relation FROM pg_locks x WHERE x.locktype = 'relation' AND x.granted AND x.pid <> pg_backend_pid()
          AND x.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND x.relation = ANY (relations) AND (behind_readers OR x.mode NOT IN ('AccessShareLock', 'RowShareLock'))) AS l
    JOIN pg_stat_activity a USING (pid) GROUP BY l.relation ORDER BY l.relation LIMIT 1;
    -- A prepared transaction has no process.
    IF busy IS NULL THEN
        SELECT l.relation::regclass::text, format('prepared transaction %s', string_agg(quote_literal(p.gid), ', ')) INTO busy, holder
        FROM pg_locks l JOIN pg_locks x ON x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid' AND x.granted AND x.mode = 'ExclusiveLock'
        JOIN pg_prepared_xacts p ON p.transaction = x.transactionid AND p.database = current_database()
        WHERE l.locktype = 'relation' AND l.granted AND l.relation = ANY (relations) AND (behind_readers OR l.mode NOT IN ('AccessShareLock', 'RowShareLock'))
        GROUP BY l.relation ORDER BY l.relation LIMIT 1;
    END IF;
    RAISE EXCEPTION 'cannot lock % to % its triggers: it is in use by %', coalesce(busy, array_to_string(relations, ' or ')), purpose, coalesce(holder, 'a transaction that has just ended')
        USING ERRCODE = 'lock_not_available', HINT = 'Nothing was changed. End that transaction, or try again when it has ended.';
END
$$;

-- check_owner returns the role that a resource's capture code belongs to (the one that called track(), and as which its
-- triggers and its view read), and refuses the current role if it may not touch it. NULL: there is none yet.
CREATE FUNCTION reconciler.check_owner(resource_id integer) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r    record;
    role oid;
BEGIN
    SELECT x.name, to_regclass(format('reconciler.%I', 'desired_' || x.name)) AS desired INTO r FROM reconciler.resources x WHERE x.id = resource_id;
    role := coalesce((SELECT c.relowner FROM pg_class c WHERE c.oid = r.desired),
        (SELECT p.proowner FROM reconciler.capture_functions(resource_id) AS f JOIN pg_proc p ON p.oid = f LIMIT 1));
    IF NOT pg_has_role(role, 'USAGE') THEN
        RAISE EXCEPTION 'resource % was tracked by role %, of which % is no member', r.name, quote_ident(pg_get_userbyid(role)), quote_ident(current_user)
            USING ERRCODE = 'insufficient_privilege', HINT = format('Do it as that role, or: GRANT %I TO %I;', pg_get_userbyid(role), current_user);
    END IF;
    RETURN role;
END
$$;

-- placing_columns are those that target, running and protect read. Their changes are never ignored: a row that moved or stopped
-- would be left where it was, and one that is protected would be deleted.
CREATE FUNCTION reconciler.placing_columns(r reconciler.resources) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := 'placing_' || md5(random()::text || clock_timestamp()::text);
    used text[];
BEGIN
    -- PostgreSQL knows best what an expression reads.
    EXECUTE format('CREATE VIEW reconciler.%I AS SELECT (%s) AS target, (%s) AS running, (%s) AS protect FROM %s AS %I',
        name, r.target_bound, r.running_bound, r.protect_bound, r.relation, r.alias);
    SELECT CASE WHEN w.ev_action ~ ':varattno 0 ' THEN reconciler.columns_of(r.relation) ELSE ARRAY(
        SELECT a.attname::text FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid AND d.refclassid = 'pg_class'::regclass AND d.refobjid = r.relation AND d.refobjsubid > 0) END
    INTO used FROM pg_rewrite w WHERE w.ev_class = format('reconciler.%I', name)::regclass;
    EXECUTE format('DROP VIEW reconciler.%I', name);
    RETURN used;
END
$$;

-- install_functions creates the trigger functions anew, and no trigger: this locks no table of the user.
CREATE FUNCTION reconciler.install_functions(r reconciler.resources) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    d reconciler.dependencies;
BEGIN
    EXECUTE reconciler.truncate_function_code(r);
    IF r.relation_kind IN ('r', 'p') THEN
        EXECUTE reconciler.row_function_code(r);
    END IF;
    FOR d IN SELECT * FROM reconciler.dependencies x WHERE x.resource_id = r.id LOOP
        EXECUTE reconciler.dependency_function_code(r, d);
    END LOOP;
    -- A function that was missing until now would be open to PUBLIC.
    PERFORM reconciler.close_capture(r.id);
END
$$;

-- source_fingerprints returns what the rows of a resource are made from, as far as PostgreSQL knows: its relation, base tables,
-- views, functions and types, with a fingerprint of each that changes with DDL which may change what rows ask for. Keys are class
-- and oid. Tables that a function reads by name are unknown to PostgreSQL.
CREATE FUNCTION reconciler.source_fingerprints(resource_id integer) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE own AS (
        SELECT to_regclass(format('reconciler.%I', 'desired_' || r.name)) AS view
        FROM reconciler.resources r WHERE r.id = source_fingerprints.resource_id
    ), source AS (
        SELECT 'pg_class'::regclass::oid AS class, o.view::oid AS id FROM own o WHERE o.view IS NOT NULL
        UNION ALL
        SELECT 'pg_class'::regclass, d.relation FROM reconciler.dependencies d WHERE d.resource_id = source_fingerprints.resource_id
        UNION
        SELECT d.refclassid, d.refobjid
        FROM source s
        LEFT JOIN pg_rewrite w ON s.class = 'pg_class'::regclass AND w.ev_class = s.id
        JOIN pg_depend d ON (d.classid, d.objid) IN ((s.class, s.id), ('pg_rewrite'::regclass, w.oid))
        WHERE d.refclassid IN ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_type'::regclass, 'pg_operator'::regclass)
          AND d.deptype IN ('n', 'i', 'a')
    ), prints AS (
        -- xmin: ALTER TYPE ... USING may change every value and leave everything else as it is.
        SELECT s.class, s.id, format('%s %s %s', a.attnum, a.attname, a.xmin) AS print
        FROM source s JOIN pg_class c ON s.class = 'pg_class'::regclass AND c.oid = s.id AND c.relkind IN ('r', 'p', 'm', 'f')
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT s.class, s.id, format('partition %s', t.id)
        FROM source s JOIN pg_class c ON s.class = 'pg_class'::regclass AND c.oid = s.id AND c.relkind = 'p'
        CROSS JOIN LATERAL reconciler.partitions(c.oid) AS t(id)
        UNION ALL
        SELECT s.class, s.id, format('view %s', w.xmin)
        FROM source s JOIN pg_rewrite w ON s.class = 'pg_class'::regclass AND w.ev_class = s.id
        UNION ALL
        SELECT s.class, s.id, format('function %s', p.xmin)
        FROM source s JOIN pg_proc p ON s.class = 'pg_proc'::regclass AND p.oid = s.id
        UNION ALL
        SELECT s.class, s.id, format('label %s %s', e.enumsortorder, e.enumlabel)
        FROM source s JOIN pg_enum e ON s.class = 'pg_type'::regclass AND e.enumtypid = s.id
        UNION ALL
        SELECT s.class, s.id, format('attribute %s %s %s', a.attnum, a.attname, a.xmin)
        FROM source s JOIN pg_type t ON s.class = 'pg_type'::regclass AND t.oid = s.id AND t.typtype = 'c'
        JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    )
    SELECT coalesce(jsonb_object_agg(x.source, x.print), '{}')
    FROM (
        SELECT format('%s/%s', p.class::regclass, p.id) AS source, md5(string_agg(p.print, E'\n' ORDER BY p.print)) AS print
        FROM prints p WHERE NOT EXISTS (SELECT FROM own o WHERE p.class = 'pg_class'::regclass AND p.id = o.view)
        GROUP BY p.class, p.id) AS x
$$;

-- store_sources stores the fingerprints of a resource, and returns what has changed since they were stored. NULL: nothing. Its
-- rights are the schema owner's: definers and the daemon need none on the table.
CREATE FUNCTION reconciler.store_sources(resource_id integer) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_ jsonb := reconciler.source_fingerprints(store_sources.resource_id);
    before jsonb := (SELECT s.fingerprints FROM reconciler.sources s WHERE s.resource_id = store_sources.resource_id);
BEGIN
    IF before = found_ THEN
        RETURN NULL;
    END IF;
    INSERT INTO reconciler.sources AS s (resource_id, fingerprints) VALUES (store_sources.resource_id, found_)
    ON CONFLICT ON CONSTRAINT sources_pkey DO UPDATE SET fingerprints = excluded.fingerprints;
    RETURN (
        SELECT string_agg(coalesce(pg_describe_object(split_part(key, '/', 1)::regclass, split_part(key, '/', 2)::oid, 0), 'one that is gone'), ', ' ORDER BY key)
        FROM jsonb_each(found_) AS n FULL JOIN jsonb_each(before) AS o USING (key) WHERE n.value IS DISTINCT FROM o.value);
END
$$;

-- install_capture creates everything that is generated for a resource, anew, and drops what belongs to an earlier definition.
-- It belongs to owner then, or to whom it belonged.
CREATE FUNCTION reconciler.install_capture(resource_id integer, owner oid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r       reconciler.resources;
    d       reconciler.dependencies;
    role    oid := coalesce(owner, reconciler.check_owner(resource_id));
    timeout text := reconciler.bound_lock_timeout();
BEGIN
    SELECT * INTO STRICT r FROM reconciler.resources WHERE id = resource_id;
    PERFORM reconciler.remove_stale_capture(r.id);
    BEGIN
        PERFORM reconciler.create_desired_view(r);
        PERFORM reconciler.refresh_dependencies(r.id);
        UPDATE reconciler.resources x
        SET capture_version = reconciler.capture_template(), known_columns = reconciler.column_names(x.relation)
        WHERE x.id = r.id RETURNING * INTO r;
        PERFORM reconciler.store_sources(r.id);
        PERFORM reconciler.install_functions(r);
        IF r.relation_kind IN ('r', 'p') THEN
            PERFORM reconciler.create_triggers(r.id, r.relation, 'capture_' || r.id, CASE WHEN r.ignored = '{}' THEN ''
                ELSE reconciler.changed_condition(ARRAY(SELECT c FROM unnest(reconciler.columns_of(r.relation)) WITH ORDINALITY AS w(c, n)
                    WHERE c <> ALL (r.ignored) OR c = ANY (r.key_columns) OR c = ANY (reconciler.placing_columns(r)) ORDER BY n)) END);
        END IF;
        FOR d IN SELECT * FROM reconciler.dependencies AS x WHERE x.resource_id = r.id ORDER BY x.id LOOP
            PERFORM reconciler.create_triggers(r.id, d.relation, format('capture_%s_from_%s', r.id, d.id), reconciler.changed_condition(d.watched));
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        PERFORM reconciler.lock_failed(ARRAY(SELECT DISTINCT p.relation FROM reconciler.places(resource_id) AS p), 'create', false);
    END;
    PERFORM set_config('lock_timeout', timeout, true);
    PERFORM reconciler.close_capture(r.id);
    PERFORM reconciler.hand_over(r.id, role);
END
$$;

-- close_capture takes the generated functions from PUBLIC: trigger functions run with their owner's rights, and whoever may
-- execute one could put it on a table of his own. Firing them on the user's table needs no right.
CREATE FUNCTION reconciler.close_capture(resource_id integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT * FROM reconciler.capture_functions(resource_id) LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
END
$$;

-- hand_over gives the capture code of a resource to a role.
CREATE FUNCTION reconciler.hand_over(resource_id integer, role oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r reconciler.resources;
    f regprocedure;
BEGIN
    SELECT * INTO STRICT r FROM reconciler.resources WHERE id = resource_id;
    IF (SELECT c.relowner <> role FROM pg_class c WHERE c.oid = to_regclass(format('reconciler.%I', 'desired_' || r.name))) THEN
        EXECUTE format('ALTER VIEW reconciler.%I OWNER TO %I', 'desired_' || r.name, pg_get_userbyid(role));
    END IF;
    FOR f IN SELECT p.oid::regprocedure FROM pg_proc p
             WHERE p.oid IN (SELECT reconciler.capture_functions(resource_id)) AND p.proowner <> role LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f, pg_get_userbyid(role));
    END LOOP;
END
$$;

CREATE FUNCTION reconciler.capture_functions(resource_id integer) RETURNS SETOF regprocedure
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.oid::regprocedure FROM pg_proc p
    WHERE p.pronamespace = 'reconciler'::regnamespace AND p.prorettype = 'trigger'::regtype AND p.proname ~ format('^capture_%s(_|$)', resource_id) ORDER BY p.proname
$$;

-- drop_functions drops capture functions and with them their triggers: DROP TRIGGER would need the table's owner.
CREATE FUNCTION reconciler.drop_functions(functions regprocedure[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    timeout text := reconciler.bound_lock_timeout();
    tables  regclass[] := ARRAY(SELECT DISTINCT g.tgrelid::regclass FROM pg_trigger g WHERE g.tgfoid = ANY (functions));
    f       regprocedure;
BEGIN
    FOREACH f IN ARRAY functions LOOP
        EXECUTE format('DROP FUNCTION %s CASCADE', f);
    END LOOP;
    PERFORM set_config('lock_timeout', timeout, true);
EXCEPTION WHEN lock_not_available THEN
    PERFORM reconciler.lock_failed(tables, 'drop', true);
END
$$;

-- remove_stale_capture drops what an earlier definition put on other tables.
CREATE FUNCTION reconciler.remove_stale_capture(resource_id integer) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT reconciler.drop_functions(ARRAY(
        SELECT f FROM reconciler.capture_functions(resource_id) AS f JOIN pg_proc p ON p.oid = f
        WHERE p.proname <> format('capture_%s_truncate', resource_id) AND NOT EXISTS (SELECT FROM reconciler.places(resource_id) AS x WHERE x.function_name = p.proname)
           OR EXISTS (SELECT FROM pg_trigger g WHERE g.tgfoid = f AND NOT EXISTS (SELECT FROM reconciler.places(resource_id) AS x WHERE x.trigger_name = g.tgname AND x.relation = g.tgrelid))))
$$;

-- remove_capture drops everything that is generated for a resource.
CREATE FUNCTION reconciler.remove_capture(resource_id integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := (SELECT 'desired_' || r.name FROM reconciler.resources r WHERE r.id = resource_id);
BEGIN
    PERFORM reconciler.check_owner(resource_id);
    PERFORM reconciler.drop_functions(ARRAY(SELECT reconciler.capture_functions(resource_id)));
    IF to_regclass(format('reconciler.%I', name)) IS NOT NULL THEN
        EXECUTE format('DROP VIEW reconciler.%I', name);
    END IF;
END
$$;

-- copy_view_grants gives a fresh desired view the readers that reconciler.grant() named: whole to a daemon's role (it
-- writes the ledger), without specs to others that read the ledger, because specs may hold secrets.
CREATE FUNCTION reconciler.copy_view_grants(view_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reader  record;
    columns text := (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a
                     WHERE a.attrelid = format('reconciler.%I', view_name)::regclass AND a.attnum > 0 AND (a.attname IN ('target', 'key', 'running') OR starts_with(a.attname, 'key_')));
BEGIN
    FOR reader IN SELECT a.grantee::regrole::text AS name, bool_or(a.privilege_type = 'INSERT') AS whole FROM pg_class c, aclexplode(c.relacl) AS a
        WHERE c.oid = 'reconciler.ledger'::regclass AND a.grantee <> 0 AND a.grantee <> c.relowner
        GROUP BY 1 HAVING bool_or(a.privilege_type = 'SELECT') LOOP
        EXECUTE format('GRANT SELECT%s ON reconciler.%I TO %s', CASE WHEN NOT reader.whole THEN format(' (%s)', columns) END, view_name, reader.name);
    END LOOP;
END
$$;

CREATE FUNCTION reconciler.refresh_dependencies(resource_id integer) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    UPDATE reconciler.dependencies d SET watched = reconciler.watched_columns(format('reconciler.%I', 'desired_' || r.name)::regclass, d.relation, d.base)
    FROM reconciler.resources r WHERE r.id = refresh_dependencies.resource_id AND d.resource_id = r.id
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.desired_view_code IS 'Internal: code of a desired view.';
COMMENT ON FUNCTION reconciler.create_desired_view IS 'Internal: creates the desired view of a resource.';
COMMENT ON FUNCTION reconciler.bound_lock_timeout IS 'Internal: limits lock_timeout for the rest of a transaction.';
COMMENT ON FUNCTION reconciler.lock_failed IS 'Internal: says who holds a lock.';
COMMENT ON FUNCTION reconciler.placing_columns IS 'Internal: columns that say where an object is wanted.';
COMMENT ON FUNCTION reconciler.check_owner IS 'Internal: whom the capture code of a resource belongs to.';
COMMENT ON FUNCTION reconciler.hand_over IS 'Internal: gives the capture code of a resource to a role.';
COMMENT ON FUNCTION reconciler.install_functions IS 'Internal: creates the trigger functions of a resource.';
COMMENT ON FUNCTION reconciler.source_fingerprints IS 'Internal: what a resource is made from, with fingerprints.';
COMMENT ON FUNCTION reconciler.store_sources IS 'Internal: stores the fingerprints of what a resource is made from.';
COMMENT ON FUNCTION reconciler.install_capture IS 'Internal: creates view, functions and triggers of a resource.';
COMMENT ON FUNCTION reconciler.close_capture IS 'Internal: takes generated functions from PUBLIC.';
COMMENT ON FUNCTION reconciler.capture_functions IS 'Internal: trigger functions of a resource.';
COMMENT ON FUNCTION reconciler.drop_functions IS 'Internal: drops trigger functions with their triggers.';
COMMENT ON FUNCTION reconciler.remove_stale_capture IS 'Internal: drops what an earlier definition of a resource left.';
COMMENT ON FUNCTION reconciler.remove_capture IS 'Internal: drops view, functions and triggers of a resource.';
COMMENT ON FUNCTION reconciler.copy_view_grants IS 'Internal: grants a desired view to the roles of reconciler.grant().';
COMMENT ON FUNCTION reconciler.refresh_dependencies IS 'Internal: finds out again which base columns a joined resource reads.';

-- +goose Down
DROP FUNCTION reconciler.refresh_dependencies, reconciler.copy_view_grants, reconciler.remove_capture,
    reconciler.remove_stale_capture, reconciler.drop_functions, reconciler.capture_functions, reconciler.close_capture, reconciler.install_capture, reconciler.install_functions, reconciler.placing_columns,
    reconciler.check_owner, reconciler.hand_over,
    reconciler.lock_failed, reconciler.bound_lock_timeout, reconciler.create_desired_view, reconciler.desired_view_code, reconciler.create_triggers,
    reconciler.places, reconciler.changed_condition, reconciler.dependency_function_code, reconciler.truncate_function_code,
    reconciler.row_function_code, reconciler.bounds_code, reconciler.without_harmless_casts, reconciler.needs_settings, reconciler.assign_code, reconciler.place_expression, reconciler.everywhere_expression, reconciler.wanted_version, reconciler.renamed_columns, reconciler.is_another, reconciler.renumbered, reconciler.store_sources, reconciler.source_fingerprints, reconciler.partitions, reconciler.function_code, reconciler.pinned_settings, reconciler.rights_code, reconciler.capture_template, reconciler.lock_definitions, reconciler.defining, reconciler.sleep_lock, reconciler.end_code, reconciler.wake_code;
