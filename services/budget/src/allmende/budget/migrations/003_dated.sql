-- Dated changes of shares: what was planned, and what became of it. Append-only: whether one is open is which steps there are.

CREATE TABLE dated (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    change text COLLATE "C" NOT NULL UNIQUE,
    parent text COLLATE "C" NOT NULL,
    from_ms bigint NOT NULL,
    -- NULL: for good.
    until_ms bigint CHECK (until_ms > from_ms),
    -- Text, not jsonb, which knows no \u0000.
    planned text NOT NULL
);
CREATE INDEX dated_of_parent ON dated (parent, number);

CREATE TABLE dated_step (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dated bigint NOT NULL REFERENCES dated (number),
    step text NOT NULL CHECK (step IN ('begun', 'extended', 'ended', 'withdrawn')),
    -- Of an extension: the new end.
    until_ms bigint CHECK ((step = 'extended') = (until_ms IS NOT NULL)),
    -- Of a beginning: the shares of before, which come back at the end.
    base text CHECK ((step = 'begun') = (base IS NOT NULL)),
    said text NOT NULL
);
CREATE INDEX dated_steps ON dated_step (dated, number);
-- Each once, whichever replica does it.
CREATE UNIQUE INDEX dated_step_once ON dated_step (dated, step) WHERE step <> 'extended';

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON dated
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_rewrite_history();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON dated_step
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_rewrite_history();
