-- Of a job's submission, as it came: the same id with another one is refused. Rows from before have none.
ALTER TABLE job ADD COLUMN digest text;
