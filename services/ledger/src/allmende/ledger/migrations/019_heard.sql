-- What was heard for the books, batch by batch, so that they can be computed anew (decision 0035). Partitions of a day of the clock:
-- old ones are dropped whole, and nothing is ever vacuumed.
CREATE TABLE heard (
    cluster text COLLATE "C" NOT NULL,
    -- Without a gap in a cluster: writers hold its lock.
    number bigint NOT NULL,
    at_ms bigint NOT NULL,
    words int NOT NULL,
    -- JSON, deflated.
    said bytea NOT NULL,
    PRIMARY KEY (cluster, number, at_ms)
) PARTITION BY RANGE (at_ms);
CREATE TABLE heard_head (
    cluster text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL,
    -- Words since the newest seal, and when that was.
    words bigint NOT NULL,
    sealed_at_ms bigint NOT NULL
) WITH (fillfactor = 50);

-- The attempts and counters of a cluster right after batch `number`, and the greatest posting by then. 0: before the first one.
CREATE TABLE seal (
    cluster text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    at_ms bigint NOT NULL,
    posting bigint NOT NULL,
    -- JSON, deflated.
    state bytea NOT NULL,
    PRIMARY KEY (cluster, number)
);
