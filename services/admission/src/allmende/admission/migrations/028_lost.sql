-- An attempt that was declared lost holds its GPUs until the agent speaks, while its job may run again.
DROP INDEX attempt_live;
CREATE UNIQUE INDEX attempt_live ON attempt (job) WHERE state NOT IN ('ended', 'lost');
