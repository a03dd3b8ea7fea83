-- The tree of budgets as rows with validity. Nothing here is ever edited or deleted: "as of revision n" is a query.

CREATE TABLE revision (
    number bigint PRIMARY KEY CHECK (number > 0),
    effective_from_ms bigint NOT NULL CHECK (effective_from_ms >= 0),
    author text NOT NULL,
    reason text NOT NULL,
    budgets int NOT NULL CHECK (budgets > 0),
    digest text NOT NULL,
    -- The upload that made it, so that a repeated last piece finds what it has done.
    upload text UNIQUE
);

-- A budget holds as it stands here from `from_revision` until its next row. NULL: it is gone from then on.
-- Text, not jsonb: what is stored must hash to the same digest again, and jsonb knows neither key order nor \u0000.
CREATE TABLE definition (
    budget text COLLATE "C" NOT NULL,
    from_revision bigint NOT NULL REFERENCES revision (number),
    definition text,
    PRIMARY KEY (budget, from_revision)
);

CREATE FUNCTION refuse_to_rewrite_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'table % is append-only: history is never edited', TG_TABLE_NAME;
END
$$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON revision
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_rewrite_history();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON definition
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_rewrite_history();

-- Pieces of trees that are being uploaded: a waiting room, not history. Old ones are swept out.
CREATE TABLE upload_piece (
    upload text NOT NULL,
    author text NOT NULL,
    piece int NOT NULL,
    last boolean NOT NULL,
    content text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (upload, author, piece)
);
