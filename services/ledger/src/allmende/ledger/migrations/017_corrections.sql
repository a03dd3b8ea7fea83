-- What operators put right: an amount moved between two accounts over a span, as one double entry a bucket. Append-only like postings.
CREATE TABLE correction (
    -- The caller's id: the same again is the same correction.
    id text COLLATE "C" PRIMARY KEY,
    number bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    cluster text COLLATE "C" NOT NULL,
    debit_account text COLLATE "C" NOT NULL,
    credit_account text COLLATE "C" NOT NULL,
    from_ms bigint NOT NULL,
    to_ms bigint NOT NULL,
    amount_gpu_ms bigint NOT NULL CHECK (amount_gpu_ms > 0),
    -- NULL: all that the giving account had there.
    asked_gpu_ms bigint,
    author text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    at_ms bigint NOT NULL,
    CHECK (from_ms < to_ms),
    CHECK (debit_account <> credit_account)
);
CREATE TABLE correction_entry (
    correction text COLLATE "C" NOT NULL REFERENCES correction,
    cluster text COLLATE "C" NOT NULL,
    bucket_ms bigint NOT NULL CHECK (bucket_ms % 300000 = 0),
    debit_account text COLLATE "C" NOT NULL CHECK (debit_account IN ('unallocated', 'capacity/' || cluster) OR debit_account LIKE 'budget/%'),
    credit_account text COLLATE "C" NOT NULL CHECK (credit_account IN ('unallocated', 'capacity/' || cluster) OR credit_account LIKE 'budget/%'),
    amount_gpu_ms bigint NOT NULL CHECK (amount_gpu_ms > 0),
    PRIMARY KEY (correction, bucket_ms),
    CHECK (debit_account <> credit_account)
);
CREATE INDEX correction_taken ON correction_entry (cluster, debit_account, bucket_ms);
CREATE INDEX correction_given ON correction_entry (cluster, credit_account, bucket_ms);

CREATE FUNCTION corrections_are_for_ever() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'corrections are never changed or removed: put them right by another one' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER correction_for_ever BEFORE UPDATE OR DELETE OR TRUNCATE ON correction
    FOR EACH STATEMENT EXECUTE FUNCTION corrections_are_for_ever();
CREATE TRIGGER correction_entry_for_ever BEFORE UPDATE OR DELETE OR TRUNCATE ON correction_entry
    FOR EACH STATEMENT EXECUTE FUNCTION corrections_are_for_ever();
-- A foreign key locks the row that it names, for which the owner needs UPDATE there; the trigger alone forbids it.
REVOKE DELETE, TRUNCATE ON correction FROM CURRENT_USER;
REVOKE UPDATE, DELETE, TRUNCATE ON correction_entry FROM CURRENT_USER;
