-- The ledger's books. Instants and lengths are milliseconds of the lab's clock, amounts GPU-milliseconds.

-- One row a cluster: the newest round of standings. Every writer of a cluster holds the advisory lock `cluster:NAME`.
CREATE TABLE cluster (
    cluster text COLLATE "C" PRIMARY KEY,
    usage_revision bigint NOT NULL DEFAULT 0,
    as_of_ms bigint,
    counted_grants bigint NOT NULL DEFAULT 0,
    -- What the newest round said, to tell whether the next one says anything new.
    content bytea
);

-- One row a report, for ever: capacity as of any instant is a query.
CREATE TABLE node_step (
    cluster text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    at_ms bigint NOT NULL,
    seq bigint NOT NULL,
    installed int NOT NULL CHECK (installed >= 0),
    healthy int NOT NULL CHECK (healthy >= 0),
    PRIMARY KEY (cluster, node, at_ms)
);

-- The tree as it was said, and the revisions that are whole.
CREATE TABLE tree_change (
    budget text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    definition text,
    PRIMARY KEY (budget, revision)
);
CREATE TABLE tree_revision (
    revision bigint PRIMARY KEY,
    effective_from_ms bigint NOT NULL,
    budgets int NOT NULL,
    digest text NOT NULL,
    applied boolean NOT NULL DEFAULT false,
    -- Never before that of an earlier revision.
    in_force_from_ms bigint
);
-- Effective shares with validity [from_ms, until_ms): derived from the two above.
CREATE TABLE share (
    budget text COLLATE "C" NOT NULL,
    from_ms bigint NOT NULL,
    until_ms bigint,
    revision bigint NOT NULL,
    path text[] NOT NULL,
    ppm bigint[] NOT NULL,
    covers boolean NOT NULL,
    PRIMARY KEY (budget, from_ms),
    CHECK (until_ms IS NULL OR until_ms > from_ms)
);
CREATE UNIQUE INDEX share_open ON share (budget) WHERE until_ms IS NULL;
CREATE INDEX share_until ON share (until_ms);

-- One row an attempt and cluster, also when somebody speaks of it before its grant (granted_at_ms NULL). The cluster is part of the key, so
-- that no agent can take the place of another's attempt.
CREATE TABLE attempt (
    attempt text COLLATE "C" NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    job text,
    budget text,
    gpus int CHECK (gpus >= 0),
    replicas int CHECK (replicas > 0),
    slice_ms bigint CHECK (slice_ms >= 0),
    granted_at_ms bigint,
    grant_seq bigint,
    started_at_ms bigint,
    protected_from_ms bigint,
    protected_until_ms bigint,
    ended_at_ms bigint,
    outcome text,
    PRIMARY KEY (attempt, cluster)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX attempt_grant ON attempt (cluster, grant_seq) WHERE grant_seq IS NOT NULL;
CREATE INDEX attempt_live ON attempt (cluster) WHERE ended_at_ms IS NULL;
CREATE INDEX attempt_granted_at ON attempt (cluster, granted_at_ms);

-- The best reading of each counter, and how far it is counted and posted. What lies between is the rest that waits for an edge.
CREATE TABLE counter (
    attempt text COLLATE "C" NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    replica int NOT NULL,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    since_ms bigint NOT NULL,
    held_ms bigint NOT NULL CHECK (held_ms >= 0),
    used_gpu_ms bigint NOT NULL,
    from_ms bigint,
    to_ms bigint NOT NULL,
    posted_until_ms bigint NOT NULL,
    final boolean NOT NULL,
    event text NOT NULL,
    PRIMARY KEY (attempt, cluster, replica, epoch),
    CHECK (posted_until_ms <= to_ms AND (from_ms IS NULL OR from_ms <= posted_until_ms))
    -- Every tick updates rows in place: no index but the key, and room on the page for the new version.
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1);

-- Double entry, append-only: each row debits the cluster's capacity and credits a budget, or `unallocated`.
CREATE TABLE posting (
    number bigint GENERATED ALWAYS AS IDENTITY,
    cluster text COLLATE "C" NOT NULL,
    attempt text COLLATE "C" NOT NULL,
    replica int NOT NULL,
    epoch bigint NOT NULL,
    from_ms bigint NOT NULL,
    to_ms bigint NOT NULL,
    gpus int NOT NULL,
    debit_account text NOT NULL,
    credit_account text NOT NULL,
    amount_gpu_ms bigint NOT NULL,
    -- The message that advanced the counter; its inbox row is in the same transaction.
    event text NOT NULL,
    PRIMARY KEY (cluster, number),
    UNIQUE (attempt, replica, epoch, from_ms),
    UNIQUE (attempt, replica, epoch, to_ms),
    FOREIGN KEY (attempt, cluster) REFERENCES attempt,
    CHECK (from_ms < to_ms),
    CHECK (amount_gpu_ms = gpus * (to_ms - from_ms)),
    -- One bucket of five minutes holds it whole.
    CHECK (from_ms / 300000 = (to_ms - 1) / 300000),
    CHECK (debit_account = 'capacity/' || cluster),
    CHECK (credit_account = 'unallocated' OR credit_account LIKE 'budget/%')
);
CREATE INDEX posting_time ON posting (cluster, from_ms);

-- What is in the postings, by bucket. `budget` '' is unallocated.
CREATE TABLE usage_bucket (
    cluster text COLLATE "C" NOT NULL,
    bucket_ms bigint NOT NULL,
    budget text COLLATE "C" NOT NULL,
    gpu_ms bigint NOT NULL CHECK (gpu_ms >= 0),
    PRIMARY KEY (cluster, bucket_ms, budget)
);

-- What is not counted, and why: shown, never posted, never dropped in silence. One row a thing and code; repeats count up.
CREATE TABLE fault (
    cluster text COLLATE "C" NOT NULL,
    what text COLLATE "C" NOT NULL,
    code text COLLATE "C" NOT NULL,
    sentence text NOT NULL,
    excess_gpu_ms bigint NOT NULL,
    most_excess_gpu_ms bigint NOT NULL,
    times bigint NOT NULL DEFAULT 1,
    first_event text NOT NULL,
    last_event text NOT NULL,
    first_at_ms bigint NOT NULL,
    last_at_ms bigint NOT NULL,
    PRIMARY KEY (cluster, what, code)
);

-- Postings are for ever. The privileges go, and the trigger stops even the tables' owner, whom a grant to himself costs nothing.
CREATE FUNCTION postings_are_for_ever() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'postings are never changed or removed: a correction is a new entry' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER posting_for_ever BEFORE UPDATE OR DELETE OR TRUNCATE ON posting
    FOR EACH STATEMENT EXECUTE FUNCTION postings_are_for_ever();
REVOKE UPDATE, DELETE, TRUNCATE ON posting FROM CURRENT_USER;
