-- What admission knows. The columns beside `body` are for conditions and indices; `body` is the whole value as JSON, kept as text
-- because people may put into a job's name what jsonb refuses. Instants are milliseconds on the lab's clock.

-- `version` counts the writes of a row: each write names the version it was decided on, so two deciders cannot both win.
CREATE TABLE job (
    job text COLLATE "C" PRIMARY KEY,
    user_name text COLLATE "C" NOT NULL,
    budget text COLLATE "C",
    state text NOT NULL,
    ended_at_ms bigint,
    version bigint NOT NULL,
    body text NOT NULL
);
CREATE INDEX job_live ON job (job) WHERE state <> 'ended';
CREATE INDEX job_of_user ON job (user_name, job);
CREATE INDEX job_of_budget ON job (budget, job);
-- People name a job by the end of its id.
CREATE INDEX job_by_suffix ON job (reverse(job) COLLATE "C");
CREATE INDEX job_ended ON job (ended_at_ms) WHERE state = 'ended';

-- What jobs run. Apart, so that no list, log or message ever carries it by accident.
CREATE TABLE payload (
    job text COLLATE "C" PRIMARY KEY REFERENCES job ON DELETE CASCADE,
    body text NOT NULL
);

CREATE TABLE attempt (
    attempt text COLLATE "C" PRIMARY KEY,
    job text COLLATE "C" NOT NULL REFERENCES job ON DELETE CASCADE,
    cluster text COLLATE "C" NOT NULL,
    grant_seq bigint NOT NULL,
    state text NOT NULL,
    body text NOT NULL,
    -- Grants of a cluster are numbered without gaps.
    UNIQUE (cluster, grant_seq)
);
CREATE INDEX attempt_of_job ON attempt (job, grant_seq);
-- Never two attempts of one job at a time.
CREATE UNIQUE INDEX attempt_live ON attempt (job) WHERE state <> 'ended';

CREATE TABLE claim (
    claim text COLLATE "C" PRIMARY KEY,
    cluster text COLLATE "C" NOT NULL,
    job text COLLATE "C" NOT NULL REFERENCES job ON DELETE CASCADE,
    open boolean NOT NULL,
    body text NOT NULL
);
CREATE INDEX claim_of_job ON claim (job);
CREATE UNIQUE INDEX claim_open ON claim (job) WHERE open;

CREATE TABLE node (
    cluster text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (cluster, node)
);

CREATE TABLE cluster (
    cluster text COLLATE "C" PRIMARY KEY,
    grant_seq bigint NOT NULL,
    body text NOT NULL
);

-- The newest standing of each budget, as the ledger said it.
CREATE TABLE counted (
    cluster text COLLATE "C" NOT NULL,
    budget text COLLATE "C" NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (cluster, budget)
);

-- The newest definition heard of each budget, and the newest complete revision; in force is what `tree` holds.
CREATE TABLE known_budget (
    budget text COLLATE "C" PRIMARY KEY,
    body text NOT NULL
);
CREATE TABLE known_revision (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    body text NOT NULL
);
CREATE TABLE tree (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    revision bigint NOT NULL,
    budgets text NOT NULL
);

-- The story of each job: what `why` reads. Only ever added to.
CREATE TABLE decision (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job text COLLATE "C" NOT NULL REFERENCES job ON DELETE CASCADE,
    body text NOT NULL
);
CREATE INDEX decision_of_job ON decision (job, number);
