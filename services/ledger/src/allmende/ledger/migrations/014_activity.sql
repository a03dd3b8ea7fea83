-- Device activity, which informs and never bills: the last believed reading of each counter that named any, and what it comes to by
-- attempt and hour of UTC. `memory_gpu_ms` NULL: the agent knows no memory traffic.
CREATE TABLE activity (
    attempt text COLLATE "C" NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    replica int NOT NULL,
    epoch bigint NOT NULL,
    held_ms bigint NOT NULL,
    busy_gpu_ms bigint NOT NULL,
    memory_gpu_ms bigint,
    PRIMARY KEY (attempt, cluster, replica, epoch)
) WITH (fillfactor = 70);
CREATE TABLE activity_hour (
    cluster text COLLATE "C" NOT NULL,
    hour_ms bigint NOT NULL,
    attempt text COLLATE "C" NOT NULL,
    -- Held time of which the activity is known.
    watched_gpu_ms bigint NOT NULL CHECK (watched_gpu_ms >= 0),
    busy_gpu_ms bigint NOT NULL CHECK (busy_gpu_ms >= 0),
    memory_gpu_ms bigint CHECK (memory_gpu_ms >= 0),
    PRIMARY KEY (cluster, hour_ms, attempt)
) WITH (fillfactor = 70);
