-- For sqlc alone, which does not read the DO block that creates the schema in the first migration.
CREATE SCHEMA reconciler;
