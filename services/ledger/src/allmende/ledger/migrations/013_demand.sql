-- What jobs ask for, one row a job: of admission's words about it the latest stands, whole. No word that told what it asks for has
-- come where `gpus` is NULL: such a job's demand is not known.
CREATE TABLE demand (
    job text COLLATE "C" PRIMARY KEY,
    budget text COLLATE "C",
    submitted_at_ms bigint,
    -- Empty: any.
    clusters text[],
    gpus int CHECK (gpus >= 0),
    gpu_model text COLLATE "C",
    slice_ms bigint CHECK (slice_ms >= 0),
    -- The word that stands: when it was said, and its id.
    asked_said_at_ms bigint,
    asked_said text,
    -- The first word that told what it asks for.
    known_from_ms bigint,
    ended_at_ms bigint,
    outcome text,
    first_started_at_ms bigint,
    ended_said_at_ms bigint,
    ended_said text,
    CHECK ((gpus IS NULL) = (submitted_at_ms IS NULL) AND (gpus IS NULL) = (asked_said IS NULL) AND (gpus IS NULL) = (clusters IS NULL)),
    CHECK ((ended_at_ms IS NULL) = (ended_said IS NULL))
) WITH (fillfactor = 80);
CREATE INDEX demand_open ON demand (submitted_at_ms) WHERE ended_at_ms IS NULL;
CREATE INDEX demand_ended ON demand (ended_at_ms);
CREATE INDEX demand_known_from ON demand (known_from_ms);
CREATE INDEX attempt_of_job ON attempt (job);
