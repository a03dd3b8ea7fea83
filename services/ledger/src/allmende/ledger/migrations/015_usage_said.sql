-- What viewers were told last of each budget's use, so that only changes are said; and when each cluster's use was looked at last, so that
-- one replica says it.
CREATE TABLE usage_turn (
    cluster text COLLATE "C" PRIMARY KEY,
    as_of_ms bigint NOT NULL
);
CREATE TABLE usage_said (
    cluster text COLLATE "C" NOT NULL,
    budget text COLLATE "C" NOT NULL,
    attempts bigint NOT NULL,
    gpus bigint NOT NULL,
    hour_from_ms bigint NOT NULL,
    hour_gpu_ms bigint NOT NULL,
    day_gpu_ms bigint NOT NULL,
    PRIMARY KEY (cluster, budget)
) WITH (fillfactor = 70);
