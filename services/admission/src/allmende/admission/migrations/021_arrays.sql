-- The first job of a job's array (decision 0037). It keeps what all of them run, so it is not forgotten before the last of them has ended.
ALTER TABLE job ADD COLUMN array_of text COLLATE "C";
CREATE INDEX job_of_array ON job (array_of, job) WHERE array_of IS NOT NULL;

-- Arrays of which not all jobs have been made yet.
CREATE TABLE unfolding (
    first text COLLATE "C" PRIMARY KEY REFERENCES job ON DELETE CASCADE,
    body text NOT NULL
);
