-- +goose Up

-- What Prometheus is to scrape.
CREATE SCHEMA prometheus;
COMMENT ON SCHEMA prometheus IS 'What Prometheus scrapes: an example for reconciler.';

CREATE TABLE prometheus.scrape_targets (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job     text NOT NULL CHECK (job <> ''),
    address text NOT NULL CHECK (address ~ '^[^\s/]+:[0-9]{1,5}$'),
    labels  jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object' AND NOT labels @? '$.* ? (@.type() <> "string")'),
    enabled boolean NOT NULL DEFAULT true,
    note    text,
    UNIQUE (job, address)
);
COMMENT ON TABLE prometheus.scrape_targets IS 'One row for each endpoint.';
COMMENT ON COLUMN prometheus.scrape_targets.address IS 'host:port; the path is the job''s, /metrics by default.';
COMMENT ON COLUMN prometheus.scrape_targets.labels IS 'Labels added to everything that is scraped from it; their values are strings.';
COMMENT ON COLUMN prometheus.scrape_targets.enabled IS 'False: known, but not scraped.';
COMMENT ON COLUMN prometheus.scrape_targets.note IS 'For people; Prometheus does not see it.';

-- +goose Down
DROP SCHEMA prometheus CASCADE;
