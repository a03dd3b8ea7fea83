-- The quarantine: of each thing and reason the greatest claim as it was said, and what operators released.
ALTER TABLE fault
    -- JSON; NULL: said before claims were kept.
    ADD COLUMN claim text,
    -- By which of two claims of one thing the greater is told.
    ADD COLUMN claim_size bigint NOT NULL DEFAULT 0,
    -- NULL: it waits. Said again after a release, it waits again.
    ADD COLUMN released_at_ms bigint;
CREATE TABLE release (
    -- The caller's id of this release: the same again is the same release.
    id text COLLATE "C" PRIMARY KEY,
    cluster text COLLATE "C" NOT NULL,
    what text COLLATE "C" NOT NULL,
    code text COLLATE "C" NOT NULL,
    claim text NOT NULL,
    counted_gpu_ms bigint NOT NULL,
    author text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    at_ms bigint NOT NULL,
    FOREIGN KEY (cluster, what, code) REFERENCES fault (cluster, what, code)
);
CREATE INDEX release_of_item ON release (cluster, what, code, at_ms DESC);
