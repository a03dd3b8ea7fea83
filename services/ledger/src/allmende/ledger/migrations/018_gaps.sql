-- Stretches without a counter that closed exactly: the same counter came back and counted them. All other gaps are computed from `counter`.
CREATE TABLE gap (
    attempt text COLLATE "C" NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    replica int NOT NULL,
    from_ms bigint NOT NULL,
    to_ms bigint NOT NULL CHECK (to_ms > from_ms),
    closed_at_ms bigint NOT NULL,
    PRIMARY KEY (attempt, cluster, replica, from_ms)
);
CREATE INDEX gap_of_cluster ON gap (cluster, from_ms);
