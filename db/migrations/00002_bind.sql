-- +goose Up

-- How a user's definition is checked and understood: relations, expressions, keys, dependencies.

-- +goose StatementBegin
-- columns_text names the columns of a relation for a hint.
CREATE FUNCTION reconciler.columns_text(relation regclass) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped
$$;

CREATE FUNCTION reconciler.columns_of(relation regclass) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(attname::text ORDER BY attnum), '{}') FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped
$$;

-- column_names are the names of a relation's columns by number, NULL for dropped ones.
CREATE FUNCTION reconciler.column_names(relation regclass) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(CASE WHEN NOT attisdropped THEN attname::text END ORDER BY attnum), '{}')
    FROM pg_attribute WHERE attrelid = relation AND attnum > 0
$$;

-- plpgsql_text quotes names that are words of PL/pgSQL and not of SQL (a column named "begin"): bound expressions do not. They
-- qualify each column, so a word beside no dot is SQL's own, as in ORDER BY.
CREATE FUNCTION reconciler.plpgsql_text(sql text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(CASE WHEN t.token[1] ~ '^["'']' THEN t.token[1]
        ELSE regexp_replace(t.token[1], format('\m(%1$s)\M(?=[.])|(?<=[.])(%1$s)\M', 'begin|by|declare|execute|foreach|if|loop|strict|while'), '"\1\2"', 'g') END, '' ORDER BY t.n)
    FROM regexp_matches(sql, $re$"(?:[^"]|"")*"|'(?:[^']|'')*'|[^"']+$re$, 'g') WITH ORDINALITY AS t(token, n)
$$;

-- check_relation refuses relations whose changes triggers do not see, or must not.
CREATE FUNCTION reconciler.check_relation(relation regclass) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c record;
BEGIN
    SELECT x.relkind, x.relpersistence, n.nspname INTO c FROM pg_class x JOIN pg_namespace n ON n.oid = x.relnamespace WHERE x.oid = relation;
    IF c.relkind NOT IN ('r', 'p', 'v', 'm', 'f') THEN
        RAISE EXCEPTION '% is not a table or view', relation USING ERRCODE = 'wrong_object_type';
    ELSIF c.relpersistence = 't' THEN
        RAISE EXCEPTION '% is temporary: it is gone, or another table, for every other session', relation USING ERRCODE = 'wrong_object_type';
    ELSIF c.nspname IN ('pg_catalog', 'information_schema', 'pg_toast') THEN
        RAISE EXCEPTION '% belongs to PostgreSQL itself, which fires no triggers on it', relation USING ERRCODE = 'wrong_object_type';
    -- Rows of this one come with the end of an apply, so that is all that they lead to.
    ELSIF c.nspname = 'reconciler' AND relation IS DISTINCT FROM to_regclass('reconciler.apply_events') THEN
        RAISE EXCEPTION '% belongs to reconciler itself: each of its changes would make another', relation USING ERRCODE = 'wrong_object_type',
            HINT = 'Of its tables only reconciler.apply_events can be tracked.';
    ELSIF c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = relation) THEN
        RAISE EXCEPTION '% has child tables (INHERITS), and triggers on it do not see changes in those', relation USING ERRCODE = 'wrong_object_type',
            HINT = 'Track the children one by one, or a view over all of them with each child in depends_on.';
    END IF;
END
$$;

-- hidden_rows lists the tables whose row security hides rows from a role that reads a relation: through views, which read as
-- their owners, or (security_invoker) as whoever reads them. What functions read is not seen.
CREATE FUNCTION reconciler.hidden_rows(relation regclass, role oid) RETURNS TABLE (guarded regclass, reader oid)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE read AS (
        SELECT hidden_rows.relation::oid AS oid, hidden_rows.role AS reader
        UNION
        SELECT d.refobjid, CASE WHEN EXISTS (SELECT FROM pg_options_to_table(c.reloptions) AS o WHERE o.option_name = 'security_invoker' AND o.option_value::boolean)
            THEN v.reader ELSE c.relowner END
        FROM read v JOIN pg_class c ON c.oid = v.oid AND c.relkind = 'v' JOIN pg_rewrite w ON w.ev_class = c.oid
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> c.oid
    )
    SELECT DISTINCT c.oid::regclass, o.oid
    FROM read v JOIN pg_class c ON c.oid = v.oid AND c.relrowsecurity JOIN pg_roles o ON o.oid = v.reader
    WHERE NOT o.rolsuper AND NOT o.rolbypassrls AND (c.relforcerowsecurity OR NOT pg_has_role(o.oid, c.relowner, 'USAGE'))
$$;

-- bound_text prints the expression of a probe view so that it means the same in every session: every name qualified,
-- constants in a form that no setting changes, and backslashes only in E'' (standard_conforming_strings may be off).
CREATE FUNCTION reconciler.bound_text(probe regclass, mark text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET "DateStyle" = 'ISO, MDY' SET "TimeZone" = 'UTC' SET "IntervalStyle" = 'postgres' SET extra_float_digits = 1 SET bytea_output = 'hex'
SET standard_conforming_strings = on SET quote_all_identifiers = off AS $$
    -- " SELECT <expression> AS <mark>\n   FROM ..."; some expressions begin on a line of their own.
    SELECT string_agg(CASE WHEN t.token[1] LIKE '''%' AND strpos(t.token[1], E'\\') > 0 THEN 'E' || replace(t.token[1], E'\\', E'\\\\') ELSE t.token[1] END, '' ORDER BY t.n)
    FROM regexp_matches(substring(pg_get_viewdef(probe) FROM '^[[:space:]]*SELECT[[:space:]]+(.*)[[:space:]]+AS ' || mark || '[[:space:]]+FROM '),
        $re$"(?:[^"]|"")*"|'(?:[^']|'')*'|[^"']+$re$, 'g') WITH ORDINALITY AS t(token, n)
$$;

-- bind_expression lets PostgreSQL parse an expression over the relation's row under the caller's search path, refuses
-- what cannot work, and returns it with every name qualified. The relation appears under alias; a second, empty relation
-- makes PostgreSQL qualify every column.
CREATE FUNCTION reconciler.bind_expression(label text, relation regclass, alias text, expression text, path text, OUT bound text, OUT type regtype)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name    text := 'bind_' || md5(random()::text || clock_timestamp()::text);
    mark    text := 'm' || md5(random()::text);
    probe   regclass;
    message text;
BEGIN
    IF expression IS NULL OR btrim(expression) = '' THEN
        RAISE EXCEPTION '% is empty: give an SQL expression over a row of %', label, relation USING ERRCODE = 'invalid_parameter_value';
    END IF;
    BEGIN
        message := format(E'CREATE VIEW reconciler.%I AS SELECT (\n%s\n) AS %I FROM %s AS %I, (SELECT 1) AS %I', name, expression, mark, relation, alias, mark);
        PERFORM set_config('search_path', path, true);
        EXECUTE message;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    EXCEPTION
    WHEN lock_not_available OR deadlock_detected OR insufficient_resources OR operator_intervention THEN
        RAISE; -- says nothing about the expression
    WHEN OTHERS THEN
        message := replace(SQLERRM, format('column "%s" has pseudo-type record', mark), 'it must be one expression, not several');
        RAISE EXCEPTION '% does not work on %: %', label, relation, message
            USING ERRCODE = 'invalid_parameter_value', DETAIL = 'Expression: ' || expression,
                  HINT = format('It is an SQL expression over one row of %s; its columns are %s.', relation, reconciler.columns_text(relation));
    END;
    probe := format('reconciler.%I', name)::regclass;
    -- "a) AS x, (b" and the like are not what they seem to be.
    IF (SELECT array_agg(a.attname::text) FROM pg_attribute a WHERE a.attrelid = probe AND a.attnum > 0) <> ARRAY[mark] THEN
        RAISE EXCEPTION '% must be one expression, not several: %', label, expression USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM reconciler.check_bound(label, relation, probe, expression);
    bound := reconciler.bound_text(probe, mark);
    SELECT a.atttypid::regtype INTO type FROM pg_attribute a WHERE a.attrelid = probe AND a.attnum = 1;
    IF EXISTS (SELECT FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation WHERE a.attrelid = probe AND a.attnum = 1 AND NOT c.collisdeterministic) THEN
        bound := format('(%s) COLLATE "C"', bound);
    END IF;
    EXECUTE format('DROP VIEW reconciler.%I', name);
    IF bound IS NULL THEN
        RAISE EXCEPTION '% cannot be understood: %', label, expression USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- check_bound refuses an expression that does not give one value for one row, the same in the writer's session (where
-- triggers evaluate it) and in the reconciler's.
CREATE FUNCTION reconciler.check_bound(label text, relation regclass, probe regclass, expression text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tree text := (SELECT r.ev_action::text FROM pg_rewrite r WHERE r.ev_class = probe);
    bad  text;
BEGIN
    -- The first of each flag in the stored tree belongs to the outermost query; a subquery may aggregate.
    IF 'true' IN (substring(tree FROM ':hasAggs ([a-z]+)'), substring(tree FROM ':hasWindowFuncs ([a-z]+)'), substring(tree FROM ':hasTargetSRFs ([a-z]+)')) THEN
        RAISE EXCEPTION '% must give one value for one row: aggregates, window functions and set-returning functions cannot be used in it: %', label, expression
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT string_agg(DISTINCT p.proname, ', ') INTO bad
    FROM regexp_matches(tree, ':(?:opfuncid|funcid) ([0-9]+)', 'g') AS m(ids) JOIN pg_proc p ON p.oid = m.ids[1]::oid
    WHERE p.provolatile = 'v';
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION '% uses % (volatile): it must give the same value for the same row: %', label, bad, expression USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT string_agg(DISTINCT f.name, ', ') INTO bad FROM (
        -- SQLValueFunctionOp counts CURRENT_DATE (0) to CURRENT_SCHEMA (14); from 9 on they are about the session.
        SELECT (ARRAY['current_role', 'current_user', 'user', 'session_user', 'current_catalog', 'current_schema'])[m.op[1]::int - 8] AS name
        FROM regexp_matches(tree, 'SQLVALUEFUNCTION :op ([0-9]+)', 'g') AS m(op) WHERE m.op[1]::int >= 9
        UNION ALL
        SELECT p.proname FROM regexp_matches(tree, ':funcid ([0-9]+)', 'g') AS m(ids) JOIN pg_proc p ON p.oid = m.ids[1]::oid
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname IN ('current_setting', 'current_user', 'session_user', 'current_schema', 'current_schemas', 'current_query',
            'pg_backend_pid', 'pg_my_temp_schema', 'inet_client_addr', 'inet_client_port', 'txid_current', 'txid_current_if_assigned', 'pg_current_xact_id',
            'pg_current_xact_id_if_assigned', 'txid_current_snapshot', 'pg_current_snapshot')) AS f;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION '% uses %, which differs between the sessions of writers and of the reconciler: %', label, bad, expression USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Triggers see NULL in them. The catalog has had 'v' there since PostgreSQL 18.
    IF label <> 'spec' THEN
        SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) INTO bad FROM pg_attribute a
        WHERE a.attrelid = relation AND a.attgenerated = 'v' AND NOT a.attisdropped AND (tree ~ ':varattno 0 ' OR EXISTS (
            SELECT FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
            WHERE r.ev_class = probe AND d.refclassid = 'pg_class'::regclass AND d.refobjid = relation AND d.refobjsubid = a.attnum));
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION '% uses %, a virtual generated column, which triggers cannot see: %', label, bad, expression USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Write its expression out, or make the column STORED.';
        END IF;
    END IF;
    IF tree ~ 'SQLVALUEFUNCTION :op [0-8] ' OR EXISTS (
        SELECT FROM regexp_matches(tree, ':funcid ([0-9]+)', 'g') AS m(ids) JOIN pg_proc p ON p.oid = m.ids[1]::oid
        WHERE p.proname IN ('now', 'statement_timestamp', 'transaction_timestamp', 'age') AND p.provolatile = 's' AND p.pronamespace = 'pg_catalog'::regnamespace) THEN
        RAISE WARNING '% of % uses the current time: what changes by time alone is seen by the next sync, not at once', label, relation;
    END IF;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.column_names IS 'Internal: names of a relation''s columns by number.';
COMMENT ON FUNCTION reconciler.columns_of IS 'Internal: columns of a relation in their order.';
COMMENT ON FUNCTION reconciler.plpgsql_text IS 'Internal: quotes names that PL/pgSQL would take for its own words.';
COMMENT ON FUNCTION reconciler.columns_text IS 'Internal: names of columns, for hints.';
COMMENT ON FUNCTION reconciler.check_relation IS 'Internal: refuses relations that cannot be captured.';
COMMENT ON FUNCTION reconciler.hidden_rows IS 'Internal: tables whose row security hides rows from a reader.';
COMMENT ON FUNCTION reconciler.bound_text IS 'Internal: an expression as PostgreSQL understood it, in a form that no setting changes.';
COMMENT ON FUNCTION reconciler.bind_expression IS 'Internal: checks an expression of track() and returns it with every name qualified.';
COMMENT ON FUNCTION reconciler.check_bound IS 'Internal: refuses expressions that mean different things in different sessions.';

-- +goose StatementBegin
CREATE FUNCTION reconciler.base_type(type oid) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base oid := type;
    b    record;
BEGIN
    LOOP
        SELECT t.typtype, t.typbasetype INTO b FROM pg_type t WHERE t.oid = base;
        IF b.typtype IS DISTINCT FROM 'd' THEN
            RETURN CASE WHEN b.typtype IS NOT NULL THEN base END;
        END IF;
        base := b.typbasetype;
    END LOOP;
END
$$;

-- type_name is a type as casts need it: 'character' would cut to one letter what 'bpchar' leaves alone.
CREATE FUNCTION reconciler.type_name(type oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT format_type(type, -1) $$;

-- key_text is the SQL that turns one key column into text, or NULL when the type can be no key. Pages order the rows by
-- the type's own operators, an index finds them by these, and comparisons under our search_path see those of pg_catalog
-- only. So the three must be the same: of citext they are not, and its rows were lost. The text must not depend on a
-- session's settings (TimeZone, DateStyle): the trigger runs in the writer's session, the sync in ours. Nor on a
-- collation: columns of two collations cannot be joined to one key. And equal values (1.0 and 1.00) have one text.
CREATE FUNCTION reconciler.key_text(value text, type regtype) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT CASE
        WHEN b.oid IN ('date'::regtype, 'timestamp'::regtype)
        THEN format('(to_jsonb((%s)::%s) #>> ''{}'')', value, b.oid::regtype)
        WHEN b.oid = 'timestamptz'::regtype
        THEN format('(to_jsonb((%s)::timestamptz AT TIME ZONE ''UTC'') #>> ''{}'')', value)
        WHEN b.oid IN ('text'::regtype, 'varchar'::regtype, 'bpchar'::regtype, 'name'::regtype)
        THEN format('((%s)::text COLLATE "C")', value)
        WHEN b.oid = 'numeric'::regtype THEN format('(trim_scale(%s))::text', value)
        WHEN b.typtype = 'e' AND NOT EXISTS (SELECT FROM pg_opclass o WHERE o.opcintype = b.oid)
            OR b.oid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'uuid'::regtype,
            'bool'::regtype, 'oid'::regtype, 'inet'::regtype, 'cidr'::regtype, 'macaddr'::regtype, 'macaddr8'::regtype)
        THEN format('(%s)::text', value)
    END
    FROM pg_type b WHERE b.oid = reconciler.base_type(type));
END
$$;

-- target_text turns the name of a target into text. Names are compared as text, so those of a string type of an
-- extension too.
CREATE FUNCTION reconciler.target_text(value text, type regtype) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT reconciler.key_text(value, CASE t.typcategory WHEN 'S' THEN 'text' ELSE type END)
    FROM pg_type t WHERE t.oid = type
$$;

-- text_hint says what can stand in for a column whose type can be no key and no link. Of a type of an extension it is
-- its text, of which citext needs one case. Other output functions than immutable ones cannot generate columns.
CREATE FUNCTION reconciler.text_hint(relation regclass, column_name text, usable text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN b.typnamespace = 'pg_catalog'::regnamespace OR o.provolatile <> 'i' THEN usable
        WHEN c.relkind IN ('r', 'p') THEN format(
            'Name a column with its text in its place: '
            'ALTER TABLE %s ADD COLUMN %I text%s GENERATED ALWAYS AS (%s) STORED;',
            relation, column_name || '_text', CASE WHEN a.attnotnull THEN ' NOT NULL' END, x.text)
        ELSE format('Track a view that has %s instead.', x.text) END
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type b ON b.oid = reconciler.base_type(a.atttypid)
    JOIN pg_proc o ON o.oid = b.typoutput,
        format(CASE b.typname WHEN 'citext' THEN 'lower(%I::text)' ELSE '%I::text' END, column_name) AS x(text)
    WHERE a.attrelid = relation AND a.attname = column_name
$$;

-- loose_collation returns the name of a column's collation when different texts are equal under it.
CREATE FUNCTION reconciler.loose_collation(relation regclass, column_name text) RETURNS regcollation
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.oid FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation
    WHERE a.attrelid = relation AND a.attname = column_name AND NOT c.collisdeterministic
$$;

-- key_value is the inverse of key_text: the SQL that turns text back into the type. Of a domain into the type below it,
-- whose checks a row may be older than.
CREATE FUNCTION reconciler.key_value(value text, type regtype) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base oid := reconciler.base_type(type);
BEGIN
    RETURN CASE WHEN base = 'timestamptz'::regtype THEN format('((%s)::timestamp AT TIME ZONE ''UTC'')', value)
        -- A type that is gone is no row's: whoever reads fails for the view that is gone with it.
        ELSE format('(%s)::%s', value, coalesce(reconciler.type_name(base), 'text')) END;
END
$$;

-- plain_column is the SQL for a column, in the type below its domain: no operator compares a domain over an enum. A
-- column that is gone fails where the code runs.
CREATE FUNCTION reconciler.plain_column(row_name text, relation regclass, column_name text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%I.%I', row_name, column_name) || coalesce((
        SELECT '::' || reconciler.type_name(reconciler.base_type(t.oid))
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = relation AND a.attname = column_name AND NOT a.attisdropped AND t.typtype = 'd'), '')
$$;

-- key_expression is the SQL for an object's key: the text of its column, or the texts of several joined by '/',
-- with '\' before every '/' and '\' inside a part, so that different rows never share a key.
CREATE FUNCTION reconciler.key_expression(row_name text, columns text[], types regtype[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN cardinality(columns) = 1 THEN min(part)
           ELSE string_agg(format($f$replace(replace(%s, E'\\', E'\\\\'), '/', E'\\/')$f$, part), ' || ''/'' || ' ORDER BY n) END
    FROM (SELECT n, reconciler.key_text(format('%I.%I', row_name, column_name), type) AS part
          FROM unnest(columns, types) WITH ORDINALITY AS k(column_name, type, n)) AS parts
$$;

-- shortened_code is the SQL that shortens a text so that different ones stay different.
CREATE FUNCTION reconciler.shortened_code(value text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format($code$pg_catalog.concat(pg_catalog.left(%1$s, 100), '... (sha256 ', pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(%1$s, 'UTF8')), 'hex'), ')')$code$, value)
$$;

CREATE FUNCTION reconciler.shortened(value text, most integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN octet_length(value) > most THEN concat(left(value, 100), '... (sha256 ', encode(sha256(convert_to(value, 'UTF8')), 'hex'), ')') ELSE value END
$$;

-- unfit says why a running row can be no object: no config can hold a target of its name, or no index its key. Such a row is
-- never registered, called or recorded, but told of: see misfits. NULL: it can.
CREATE FUNCTION reconciler.unfit(target text, key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN key IS NULL THEN 'its key is null'
        WHEN octet_length(key) > 2000 THEN format('its key has %s bytes; the longest that can be kept has 2000', octet_length(key))
        WHEN octet_length(target) > 63 OR target !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$' THEN format('no config can hold a target named %s', quote_literal(reconciler.shortened(target, 63)))
    END
$$;

-- link_type is the type in which a column of a base table and one of the resource are compared, or NULL when values of
-- the type cannot link rows: their text form in an image must always turn back into an equal value.
CREATE FUNCTION reconciler.link_type(type oid) RETURNS regtype
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN b.oid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) THEN 'int8'::regtype
        WHEN b.oid IN ('text'::regtype, 'varchar'::regtype, 'name'::regtype) THEN 'text'::regtype
        WHEN b.oid <> 'timestamptz'::regtype AND reconciler.key_text('x', b.oid::regtype) IS NOT NULL
        THEN b.oid::regtype
    END
    FROM (SELECT reconciler.base_type(type)) AS b(oid)
$$;

-- link_value is the SQL for such a value in an image. Padding is no part of it. Of a column that is gone too: it fails
-- when it is evaluated, where that is provided for.
CREATE FUNCTION reconciler.link_value(row_name text, relation regclass, column_name text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format(CASE WHEN EXISTS (
            SELECT FROM pg_attribute a
            WHERE a.attrelid = relation AND a.attname = column_name AND NOT a.attisdropped
              AND reconciler.link_type(a.atttypid) = 'bpchar'::regtype)
        THEN '(%I.%I)::text' ELSE '%I.%I' END, row_name, column_name)
$$;

CREATE FUNCTION reconciler.link_types(relation regclass, columns text[]) RETURNS regtype[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(reconciler.link_type(a.atttypid) ORDER BY c.n), '{}')
    FROM unnest(columns) WITH ORDINALITY AS c(name, n)
    JOIN pg_attribute a ON a.attrelid = relation AND a.attname = c.name
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.base_type IS 'Internal: the type below a domain.';
COMMENT ON FUNCTION reconciler.type_name IS 'Internal: name of a type for casts.';
COMMENT ON FUNCTION reconciler.key_text IS 'Internal: SQL that turns a key column into text.';
COMMENT ON FUNCTION reconciler.target_text IS 'Internal: SQL that turns the name of a target into text.';
COMMENT ON FUNCTION reconciler.text_hint IS 'Internal: what can stand in for a column of an unusable type.';
COMMENT ON FUNCTION reconciler.loose_collation IS 'Internal: the collation of a column under which different texts are equal.';
COMMENT ON FUNCTION reconciler.key_value IS 'Internal: SQL that turns text back into a key column.';
COMMENT ON FUNCTION reconciler.plain_column IS 'Internal: SQL for a column, in the type below its domain.';
COMMENT ON FUNCTION reconciler.key_expression IS 'Internal: SQL for an object''s key.';
COMMENT ON FUNCTION reconciler.unfit IS 'Internal: why a row can be no object.';
COMMENT ON FUNCTION reconciler.shortened_code IS 'Internal: SQL that shortens a text.';
COMMENT ON FUNCTION reconciler.shortened IS 'Internal: a long text, shortened.';
COMMENT ON FUNCTION reconciler.link_type IS 'Internal: type in which depends_on compares columns.';
COMMENT ON FUNCTION reconciler.link_value IS 'Internal: SQL for a column that depends_on refers to.';
COMMENT ON FUNCTION reconciler.link_types IS 'Internal: types in which depends_on compares columns.';

-- +goose StatementBegin
-- check_key returns the types of the key columns, or says what is wrong with the key.
CREATE FUNCTION reconciler.check_key(relation regclass, key text[]) RETURNS regtype[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind    "char" := (SELECT relkind FROM pg_class WHERE oid = relation);
    types   regtype[] := '{}';
    col     text;
    att     record;
    attnums smallint[] := '{}';
BEGIN
    IF array_ndims(key) IS DISTINCT FROM 1 OR cardinality(key) > 8 THEN
        RAISE EXCEPTION 'key must name 1 to 8 columns of %', relation USING ERRCODE = 'invalid_parameter_value',
            HINT = format('Its columns are %s.', reconciler.columns_text(relation));
    END IF;
    FOREACH col IN ARRAY key LOOP
        SELECT a.attnum, a.attnotnull, a.atttypid INTO att FROM pg_attribute a
        WHERE a.attrelid = relation AND a.attname = col AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'key: % has no column %', relation, coalesce(quote_ident(col), 'NULL') USING ERRCODE = 'undefined_column',
                HINT = format('Its columns are %s.', reconciler.columns_text(relation));
        END IF;
        IF att.attnum = ANY (attnums) THEN
            RAISE EXCEPTION 'key: column % is named twice', quote_ident(col) USING ERRCODE = 'duplicate_column';
        END IF;
        IF kind IN ('r', 'p') AND NOT att.attnotnull THEN
            RAISE EXCEPTION 'key: column % of % may be null', quote_ident(col), relation USING ERRCODE = 'invalid_parameter_value',
                HINT = format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL;', relation, col);
        END IF;
        IF reconciler.key_text('x', att.atttypid) IS NULL THEN
            RAISE EXCEPTION 'key: column % has type %, which cannot be a key', quote_ident(col), att.atttypid::regtype
                USING ERRCODE = 'invalid_parameter_value', HINT = reconciler.text_hint(relation, col,
                    'Use integers, numeric, uuid, text, enums, booleans, dates, timestamps or network addresses as key.');
        END IF;
        -- A page that ends with one of two equal rows would skip the other. Of a table a unique index keeps them apart.
        IF kind NOT IN ('r', 'p') AND reconciler.loose_collation(relation, col) IS NOT NULL THEN
            RAISE EXCEPTION 'key: column % of % has collation %, under which different texts are equal', quote_ident(col),
                relation, reconciler.loose_collation(relation, col) USING ERRCODE = 'invalid_parameter_value',
                HINT = format('Track a view that has (%1$I COLLATE "C") AS %1$I instead.', col);
        END IF;
        attnums := attnums || att.attnum;
        types := types || att.atttypid::regtype;
    END LOOP;
    IF kind IN ('r', 'p') THEN
        PERFORM reconciler.check_unique(relation, key, attnums);
    END IF;
    RETURN types;
END
$$;

-- check_unique refuses a key that no unique index keeps unique. One by another collation or operator class than the
-- column's finds and orders rows by another equality and order than pages do.
CREATE FUNCTION reconciler.check_unique(relation regclass, key text[], attnums smallint[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    index_name regclass;
    fits       boolean;
BEGIN
    SELECT i.indexrelid, f.fits INTO index_name, fits FROM pg_index i CROSS JOIN LATERAL (
        SELECT bool_and(k.coll = a.attcollation AND o.opcdefault)
        FROM unnest(i.indkey::smallint[], i.indclass::oid[], i.indcollation::oid[]) AS k(attnum, class, coll)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum JOIN pg_opclass o ON o.oid = k.class) AS f(fits)
    WHERE i.indrelid = relation AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
      AND (i.indkey::smallint[])[0:i.indnkeyatts - 1] <@ attnums
    ORDER BY f.fits DESC LIMIT 1;
    IF fits THEN
        RETURN;
    END IF;
    RAISE EXCEPTION 'key: (%) %', array_to_string(key, ', '), CASE WHEN index_name IS NULL THEN format('is not unique in %s', relation)
        ELSE format('is unique in %s only by index %s, whose collation or operator class is not that of the column', relation, index_name) END
        USING ERRCODE = 'invalid_parameter_value', HINT = format('%sCREATE UNIQUE INDEX %sON %s (%s);',
            CASE WHEN index_name IS NULL THEN 'Name the columns of its primary key, or: ' END,
            CASE WHEN (SELECT relkind FROM pg_class WHERE oid = relation) = 'r' THEN 'CONCURRENTLY ' END, relation,
            (SELECT string_agg(quote_ident(k), ', ') FROM unnest(key) AS k));
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.check_unique IS 'Internal: checks that a unique index finds the rows of a key.';
COMMENT ON FUNCTION reconciler.check_key IS 'Internal: checks the key of track().';

-- +goose StatementBegin
-- parse_depends_on reads {"table": {"base column": "column of the relation", ...}, ...} or, for two mappings
-- of one table, [{"table": "...", "match": {...}}, ...]. Tables are looked up under the caller's search path.
CREATE FUNCTION reconciler.parse_depends_on(relation regclass, depends_on jsonb, path text)
RETURNS TABLE (base_relation regclass, base text[], columns text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    item  jsonb;
    items jsonb;
    pair  record;
BEGIN
    IF depends_on IS NULL THEN
        RETURN;
    END IF;
    items := CASE jsonb_typeof(depends_on)
        WHEN 'array' THEN depends_on
        WHEN 'object' THEN coalesce((SELECT jsonb_agg(jsonb_build_object('table', e.key, 'match', e.value)) FROM jsonb_each(depends_on) AS e), '[]')
    END;
    IF items IS NULL THEN
        RAISE EXCEPTION 'depends_on must be an object such as {"workspaces": {"id": "workspace_id"}}, not %', depends_on USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR item IN SELECT DISTINCT e.value FROM jsonb_array_elements(items) AS e ORDER BY 1 LOOP
        IF jsonb_typeof(item) <> 'object' OR jsonb_typeof(item -> 'table') IS DISTINCT FROM 'string' OR item - 'table' - 'match' <> '{}'
           OR jsonb_typeof(item -> 'match') IS DISTINCT FROM 'object' OR item -> 'match' = '{}' THEN
            RAISE EXCEPTION 'depends_on: % is not of the form {"table": "workspaces", "match": {"id": "workspace_id"}}', item USING ERRCODE = 'invalid_parameter_value';
        END IF;
        base_relation := reconciler.find_table(item ->> 'table', path);
        PERFORM reconciler.check_relation(base_relation);
        base := '{}';
        columns := '{}';
        FOR pair IN SELECT e.key AS base_column, e.value AS relation_column FROM jsonb_each(item -> 'match') AS e ORDER BY 1 LOOP
            IF jsonb_typeof(pair.relation_column) <> 'string' THEN
                RAISE EXCEPTION 'depends_on: %: % is not the name of a column', base_relation, pair.relation_column USING ERRCODE = 'invalid_parameter_value';
            END IF;
            PERFORM reconciler.check_link(base_relation, pair.base_column, relation, pair.relation_column #>> '{}');
            base := base || pair.base_column;
            columns := columns || (pair.relation_column #>> '{}');
        END LOOP;
        RETURN NEXT;
    END LOOP;
END
$$;

CREATE FUNCTION reconciler.find_table(name text, path text) RETURNS regclass
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_ regclass;
BEGIN
    BEGIN
        PERFORM set_config('search_path', path, true);
        found_ := pg_catalog.to_regclass(name);
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    EXCEPTION WHEN syntax_error OR invalid_name THEN
        found_ := NULL; -- 'a b' or 'a.b.c.d'
    END;
    IF found_ IS NULL THEN
        RAISE EXCEPTION 'depends_on: table "%" does not exist', name USING ERRCODE = 'undefined_table',
            HINT = 'Name it as in SQL, with its schema if that is not in the search path, and with double quotes if it has capitals or spaces.';
    END IF;
    IF (SELECT relkind NOT IN ('r', 'p') FROM pg_class WHERE oid = found_) THEN
        RAISE EXCEPTION 'depends_on: % is not a table: name the tables that its rows come from', found_ USING ERRCODE = 'wrong_object_type';
    END IF;
    RETURN found_;
END
$$;

-- check_link refuses two columns that do not exist or cannot be compared.
CREATE FUNCTION reconciler.check_link(base_relation regclass, base_column text, relation regclass, relation_column text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    side  record;
    kind  oid;
    types oid[] := '{}';
BEGIN
    FOR side IN SELECT * FROM (VALUES (base_relation, base_column), (relation, relation_column)) AS s(relation, name) LOOP
        SELECT a.atttypid INTO kind FROM pg_attribute a WHERE a.attrelid = side.relation AND a.attname = side.name AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'depends_on: % has no column %', side.relation, quote_ident(side.name) USING ERRCODE = 'undefined_column',
                HINT = format('Its columns are %s.', reconciler.columns_text(side.relation));
        END IF;
        IF reconciler.link_type(kind) IS NULL THEN
            RAISE EXCEPTION 'depends_on: column % of % has type %, whose values cannot link rows', quote_ident(side.name), side.relation, kind::regtype
                USING ERRCODE = 'invalid_parameter_value', HINT = reconciler.text_hint(side.relation, side.name,
                    'Use integers, numeric, uuid, text, enums, booleans, dates, timestamps without time zone or network addresses.');
        END IF;
        -- An image holds the text, and the ledger compares it as such.
        IF reconciler.loose_collation(side.relation, side.name) IS NOT NULL THEN
            RAISE EXCEPTION 'depends_on: column % of % has collation %, under which different texts are equal', quote_ident(side.name),
                side.relation, reconciler.loose_collation(side.relation, side.name) USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Join and link by columns under a deterministic collation.';
        END IF;
        types := types || kind;
    END LOOP;
    IF reconciler.link_type(types[1]) <> reconciler.link_type(types[2]) THEN
        RAISE EXCEPTION 'depends_on: % of % is %, but % of % is %: give them one type', quote_ident(base_column), base_relation, types[1]::regtype,
            quote_ident(relation_column), relation, types[2]::regtype USING ERRCODE = 'datatype_mismatch';
    END IF;
END
$$;

-- watched_columns says which columns of a base table a desired view reads, through views of views; NULL means all.
CREATE FUNCTION reconciler.watched_columns(desired regclass, base_relation regclass, always_watch text[]) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE views AS (
        SELECT desired::oid AS oid
        UNION
        SELECT d.refobjid FROM views v JOIN pg_rewrite r ON r.ev_class = v.oid
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
        JOIN pg_class c ON c.oid = d.refobjid AND c.relkind = 'v'
    ), rules AS (
        SELECT r.oid, r.ev_action::text AS tree, v.oid = desired AS own FROM views v JOIN pg_rewrite r ON r.ev_class = v.oid
    ), columns AS (
        SELECT d.refobjsubid AS attnum FROM rules r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
        WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = base_relation AND d.refobjsubid > 0
    )
    SELECT CASE
        -- A whole-row reference (varattno 0; in the desired view itself it means the resource's relation, unless a
        -- subquery can have another one), or a table whose columns nothing names (read by a function): watch everything.
        WHEN EXISTS (SELECT FROM rules WHERE tree LIKE '%:varattno 0 %' AND (NOT own OR tree LIKE '%:hasSubLinks true%'))
          OR NOT EXISTS (SELECT FROM columns) THEN NULL
        ELSE ARRAY(
            SELECT a.attname::text FROM pg_attribute a
            WHERE a.attrelid = base_relation AND a.attnum > 0 AND NOT a.attisdropped AND (a.attname = ANY (always_watch) OR a.attnum IN (SELECT attnum FROM columns))
            ORDER BY a.attnum)
    END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION reconciler.parse_depends_on IS 'Internal: reads and checks depends_on of track().';
COMMENT ON FUNCTION reconciler.find_table IS 'Internal: looks up a table of depends_on.';
COMMENT ON FUNCTION reconciler.check_link IS 'Internal: checks a pair of columns of depends_on.';
COMMENT ON FUNCTION reconciler.watched_columns IS 'Internal: which columns of a base table a joined resource reads.';

-- +goose Down
DROP FUNCTION reconciler.watched_columns, reconciler.check_link, reconciler.find_table, reconciler.parse_depends_on, reconciler.check_unique, reconciler.check_key, reconciler.link_types,
    reconciler.shortened, reconciler.shortened_code, reconciler.unfit, reconciler.link_value, reconciler.link_type, reconciler.key_expression, reconciler.plain_column, reconciler.key_value,
    reconciler.loose_collation, reconciler.text_hint, reconciler.target_text, reconciler.key_text, reconciler.type_name, reconciler.base_type,
    reconciler.check_bound, reconciler.bind_expression, reconciler.bound_text, reconciler.hidden_rows, reconciler.check_relation, reconciler.plpgsql_text,
    reconciler.column_names, reconciler.columns_of, reconciler.columns_text;
