-- +goose Up

-- The records that resolvers at the edge answer with.
CREATE SCHEMA edge;
COMMENT ON SCHEMA edge IS 'Records of resolvers at the edge: an example for reconciler.';

CREATE TABLE edge.records (
    name    text NOT NULL CHECK (name ~ '^[a-z0-9.-]+$'),
    type    text NOT NULL CHECK (type IN ('A', 'AAAA', 'CNAME', 'TXT')),
    value   text NOT NULL,
    ttl     interval NOT NULL DEFAULT '5 minutes',
    enabled boolean NOT NULL DEFAULT true,
    PRIMARY KEY (name, type)
);
COMMENT ON TABLE edge.records IS 'One row for each record.';
COMMENT ON COLUMN edge.records.enabled IS 'False: known, but not served.';

-- +goose Down
DROP SCHEMA edge CASCADE;
