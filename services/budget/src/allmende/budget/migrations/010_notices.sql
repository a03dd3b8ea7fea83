-- What people are told. A watch is small state, changed in place; a notice is kept for a year; a delivery is a notice on its way.

CREATE TABLE watch (
    cluster text COLLATE "C" NOT NULL,
    budget text COLLATE "C" NOT NULL,
    usage_revision bigint NOT NULL,
    reached int NOT NULL,
    paced boolean NOT NULL,
    sampled_at_ms bigint,
    PRIMARY KEY (cluster, budget)
) WITH (fillfactor = 70);

-- At most one an hour and watch, and none older than a day and a bit.
CREATE TABLE pace_sample (
    cluster text COLLATE "C" NOT NULL,
    budget text COLLATE "C" NOT NULL,
    at_ms bigint NOT NULL,
    used_gpu_ms bigint NOT NULL,
    entitlement_gpu_ms bigint NOT NULL,
    PRIMARY KEY (cluster, budget, at_ms)
);

-- `notice` is the message as it was said, as text: what is shown later is what was said then.
CREATE TABLE notice (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    budget text COLLATE "C" NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    notice text NOT NULL,
    said_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX notice_of_budget ON notice (budget, number);
CREATE INDEX notice_by_age ON notice (said_at);

-- Real time, as every other waiting for a peer. A row only where there was a webhook when the notice was said.
CREATE TABLE delivery (
    number bigint PRIMARY KEY REFERENCES notice (number) ON DELETE CASCADE,
    state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'given_up')),
    tries int NOT NULL DEFAULT 0,
    problem text NOT NULL DEFAULT '',
    next_try_at timestamptz DEFAULT clock_timestamp(),
    settled_at timestamptz,
    CHECK ((state = 'waiting') = (next_try_at IS NOT NULL)),
    CHECK ((state = 'waiting') = (settled_at IS NULL))
);
CREATE INDEX delivery_due ON delivery (next_try_at) WHERE state = 'waiting';
