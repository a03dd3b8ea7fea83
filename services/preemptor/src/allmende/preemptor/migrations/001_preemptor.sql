-- What the preemptor knows and has promised. Instants are milliseconds of the lab's clock, except `heard_at`, which is real.
-- Every key begins with the cluster: an agent's word about an attempt of another cluster touches nothing there.

CREATE TABLE cluster (
    cluster text COLLATE "C" PRIMARY KEY,
    -- The highest grant_seq up to which all grants were heard.
    grants_heard bigint NOT NULL DEFAULT 0,
    -- Admission's newest term; what an older one claims is void.
    fence bigint NOT NULL DEFAULT 0
);

CREATE TABLE node (
    cluster text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    at_ms bigint NOT NULL,
    seq bigint NOT NULL,
    healthy_gpus int NOT NULL,
    gpu_model text,
    -- The last sign of life on the database's clock, which all replicas share and nobody scales.
    heard_at timestamptz NOT NULL,
    PRIMARY KEY (cluster, node)
);

-- A row may exist before its grant was heard (grant_seq is null): its end or its protection came first.
CREATE TABLE attempt (
    cluster text COLLATE "C" NOT NULL,
    attempt text COLLATE "C" NOT NULL,
    job text,
    budget text,
    replicas int,
    gpus_per_replica int,
    priority int,
    hold_gpu_ms bigint,
    grant_seq bigint,
    started_at_ms bigint,
    -- Written once.
    protected_until_ms bigint,
    -- The plan that evicts it; set in the transaction that says so.
    leaving_plan text,
    -- When its end was heard, by our own clock: how long the row is kept.
    ended_at_ms bigint,
    PRIMARY KEY (cluster, attempt)
);
CREATE INDEX attempt_live ON attempt (cluster) WHERE ended_at_ms IS NULL AND grant_seq IS NOT NULL;
CREATE INDEX attempt_grant_seq ON attempt (cluster, grant_seq);
CREATE INDEX attempt_ended ON attempt (ended_at_ms) WHERE ended_at_ms IS NOT NULL;

-- GPUs of attempts that have not ended.
CREATE TABLE held (
    cluster text COLLATE "C" NOT NULL,
    attempt text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    gpus int NOT NULL,
    -- On the agent's word; repeating it changes nothing.
    freed int NOT NULL DEFAULT 0,
    PRIMARY KEY (cluster, attempt, node)
);

CREATE TABLE checkpoint (
    cluster text COLLATE "C" NOT NULL,
    attempt text COLLATE "C" NOT NULL,
    replica int NOT NULL,
    at_ms bigint NOT NULL,
    PRIMARY KEY (cluster, attempt, replica)
) WITH (fillfactor = 70);

CREATE TABLE standing (
    cluster text COLLATE "C" NOT NULL,
    budget text COLLATE "C" NOT NULL,
    used_gpu_ms bigint NOT NULL,
    entitlement_gpu_ms bigint NOT NULL,
    usage_revision bigint NOT NULL,
    counted_grants bigint NOT NULL,
    PRIMARY KEY (cluster, budget)
) WITH (fillfactor = 70);

-- Definitions by revision; those that a revision in force has replaced are deleted.
CREATE TABLE budget_change (
    budget text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    -- JSON as the budget service said it; null: gone.
    definition text,
    PRIMARY KEY (budget, revision)
);

CREATE TABLE tree_revision (
    revision bigint PRIMARY KEY,
    budgets int NOT NULL,
    digest text NOT NULL,
    in_force boolean NOT NULL DEFAULT false
);
CREATE UNIQUE INDEX tree_in_force ON tree_revision (in_force) WHERE in_force;

CREATE TABLE claim (
    cluster text COLLATE "C" NOT NULL,
    claim text COLLATE "C" NOT NULL,
    job text NOT NULL,
    budget text NOT NULL,
    replicas int NOT NULL,
    gpus_per_replica int NOT NULL,
    gpu_model text,
    slice_ms bigint NOT NULL,
    hold_gpu_ms bigint NOT NULL,
    priority int NOT NULL,
    newest_grant_seq bigint NOT NULL,
    fence bigint NOT NULL,
    tree_revision bigint NOT NULL,
    usage_revision bigint NOT NULL,
    -- Names, with a space between: a name has none.
    avoid_nodes text NOT NULL,
    -- The order in which admission raised them: its fair order.
    stream_seq bigint NOT NULL,
    message text NOT NULL,
    -- waiting > planned | infeasible | void; planned > closed (granted or withdrawn).
    state text NOT NULL CHECK (state IN ('waiting', 'planned', 'infeasible', 'void', 'closed')),
    PRIMARY KEY (cluster, claim)
);
CREATE INDEX claim_open ON claim (cluster, state) WHERE state IN ('waiting', 'planned');

-- Claims that ended, so that one that arrives after its own end is not answered.
CREATE TABLE claim_end (
    cluster text COLLATE "C" NOT NULL,
    claim text COLLATE "C" NOT NULL,
    ended_at_ms bigint NOT NULL,
    PRIMARY KEY (cluster, claim)
);
CREATE INDEX claim_end_at ON claim_end (ended_at_ms);

-- GPUs that open planned claims were promised.
CREATE TABLE promise (
    cluster text COLLATE "C" NOT NULL,
    claim text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    gpus int NOT NULL,
    PRIMARY KEY (cluster, claim, node)
);

-- Every plan as it was made: the answer and the orders, word for word.
CREATE TABLE plan (
    plan text COLLATE "C" PRIMARY KEY,
    cluster text NOT NULL,
    claim text NOT NULL,
    made_at_ms bigint NOT NULL,
    tree_revision bigint NOT NULL,
    usage_revision bigint NOT NULL,
    answer text NOT NULL,
    orders text[] NOT NULL,
    UNIQUE (cluster, claim)
);
CREATE RULE plan_is_immutable AS ON UPDATE TO plan DO INSTEAD NOTHING;

-- A slice that will pass. Deleted in the transaction that says slice.expired, or when the attempt ends first.
CREATE TABLE timer (
    cluster text COLLATE "C" NOT NULL,
    attempt text COLLATE "C" NOT NULL,
    job text NOT NULL,
    budget text,
    due_at_ms bigint NOT NULL,
    PRIMARY KEY (cluster, attempt)
);
CREATE INDEX timer_due ON timer (due_at_ms);
