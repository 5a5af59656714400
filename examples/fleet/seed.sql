-- Rows for the fleet example: the same ones each time, in an empty database. How many is up to three settings:
--
--   PGOPTIONS='-c fleet.live=10000 -c fleet.historical=1000000' psql -f examples/fleet/seed.sql
DO $$
DECLARE
    live       integer := coalesce(nullif(current_setting('fleet.live', true), ''), '1000');
    historical integer := coalesce(nullif(current_setting('fleet.historical', true), ''), '100000');
    policies   integer := coalesce(nullif(current_setting('fleet.policies', true), ''), '200');
    codes      text[]  := '{eu-west,us-east,ap-south}';
BEGIN
    IF EXISTS (SELECT FROM fleet.regions) THEN
        RAISE NOTICE 'fleet has rows already: nothing was added';
        RETURN;
    END IF;

    INSERT INTO fleet.regions (code, name)
    VALUES ('eu-west', 'Europe (Dublin)'), ('us-east', 'United States (Virginia)'), ('ap-south', 'Asia (Mumbai)');

    -- One live deployment for each environment, two environments for each app, ten apps for each workspace.
    INSERT INTO fleet.workspaces (slug, name)
    SELECT format('ws-%s', lpad(n::text, 3, '0')), format('Workspace %s', n)
    FROM generate_series(1, (live + 19) / 20) AS n ORDER BY n;

    INSERT INTO fleet.apps (workspace_id, slug)
    SELECT w.id, (ARRAY['web', 'api', 'worker', 'cron', 'auth', 'billing', 'search', 'mail', 'admin', 'docs'])[(n - 1) % 10 + 1]
    FROM generate_series(1, (live + 1) / 2) AS n
    JOIN (SELECT id, row_number() OVER (ORDER BY id) AS nth FROM fleet.workspaces) AS w ON w.nth = (n + 9) / 10 ORDER BY n;

    INSERT INTO fleet.environments (app_id, slug, variables)
    SELECT a.id, slug, jsonb_build_object('APP_ENV', slug)
    FROM generate_series(1, live) AS n
    JOIN (SELECT id, row_number() OVER (ORDER BY id) AS nth FROM fleet.apps) AS a ON a.nth = (n + 1) / 2,
    LATERAL (VALUES ((ARRAY['preview', 'production'])[n % 2 + 1])) AS s (slug) ORDER BY n;

    -- Some 200,000 rows, whose events would say one by one what a sync says at once: so none are captured, and at the
    -- end regenerate() has the whole resource looked at.
    ALTER TABLE fleet.deployments DISABLE TRIGGER USER;
    ALTER TABLE fleet.topologies DISABLE TRIGGER USER;

    -- The past first, so that the newest deployment of each environment is the live one.
    CREATE TEMP TABLE fleet_seed ON COMMIT DROP AS
    SELECT n, n > historical AS runs, e.id AS environment_id, e.app
    FROM generate_series(1, historical + live) AS n
    JOIN (SELECT e.id, a.slug AS app, row_number() OVER (ORDER BY e.id) AS nth
          FROM fleet.environments e JOIN fleet.apps a ON a.id = e.app_id) AS e
      ON e.nth = CASE WHEN n > historical THEN n - historical ELSE (n - 1) % live + 1 END;

    INSERT INTO fleet.deployments (environment_id, image, cpu, memory, env, command, created_at)
    SELECT s.environment_id, format('registry.example/%s:1.%s', s.app, n / live), 250 * (1 + n % 4), 256 * (1 + n % 8),
        jsonb_build_object('LOG_LEVEL', CASE n % 5 WHEN 0 THEN 'debug' ELSE 'info' END, 'PORT', (8000 + n % 100)::text),
        ARRAY['/bin/' || s.app, 'serve'], timestamptz '2026-01-01 00:00+00' + n * interval '1 minute'
    FROM fleet_seed s ORDER BY n;

    -- A live deployment runs in every region; one of the past has stopped in the region that it was in.
    INSERT INTO fleet.topologies (deployment_id, region, desired_status, replicas, status)
    SELECT d.id, code, CASE WHEN s.runs THEN 'running' ELSE 'stopped' END, 1 + s.n % 3, CASE WHEN s.runs THEN 'unknown' ELSE 'gone' END
    FROM fleet_seed s
    JOIN (SELECT id, row_number() OVER (ORDER BY id) AS nth FROM fleet.deployments) AS d ON d.nth = s.n,
    unnest(codes) WITH ORDINALITY AS c (code, nth)
    WHERE s.runs OR c.nth = s.n % 3 + 1 ORDER BY s.n, c.nth;

    ALTER TABLE fleet.deployments ENABLE TRIGGER USER;
    ALTER TABLE fleet.topologies ENABLE TRIGGER USER;
    PERFORM reconciler.regenerate('topology');

    -- Every tenth policy holds in all regions.
    INSERT INTO fleet.network_policies (name, workspace_id, region, direction, action, cidr, port)
    SELECT format('policy-%s', lpad(n::text, 4, '0')), w.id, CASE WHEN n % 10 > 0 THEN codes[n % 3 + 1] END,
        CASE n % 2 WHEN 0 THEN 'ingress' ELSE 'egress' END, CASE n % 5 WHEN 0 THEN 'deny' ELSE 'allow' END,
        format('10.%s.%s.0/24', n / 256 % 256, n % 256)::cidr, CASE WHEN n % 4 > 0 THEN 5000 + n % 1000 END
    FROM generate_series(1, policies) AS n
    JOIN (SELECT id, row_number() OVER (ORDER BY id) AS nth, count(*) OVER () AS workspaces FROM fleet.workspaces) AS w
      ON w.nth = (n - 1) % w.workspaces + 1 ORDER BY n;
END
$$;
ANALYZE fleet.regions, fleet.workspaces, fleet.apps, fleet.environments, fleet.deployments, fleet.topologies, fleet.network_policies;
