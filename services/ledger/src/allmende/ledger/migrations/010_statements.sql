-- A statement reads one budget's attempts on one cluster.
CREATE INDEX attempt_of_budget ON attempt (cluster, budget, granted_at_ms);
