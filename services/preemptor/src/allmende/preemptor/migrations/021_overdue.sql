-- Who was told to leave, and by when the agent should have said that he is gone. Deleted when he is, or when it is said that he is not.
CREATE TABLE departure (
    cluster text COLLATE "C" NOT NULL,
    attempt text COLLATE "C" NOT NULL,
    job text NOT NULL,
    plan text NOT NULL,
    due_at_ms bigint NOT NULL,
    PRIMARY KEY (cluster, attempt)
);
CREATE INDEX departure_due ON departure (due_at_ms);

ALTER TABLE attempt ADD COLUMN overdue boolean NOT NULL DEFAULT false;
