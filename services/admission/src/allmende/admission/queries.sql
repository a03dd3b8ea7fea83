-- name: put_jobs
-- Conditional: a row that is not as it was when the decision was made is not written, and is missed in the answer.
INSERT INTO job AS held (job, user_name, budget, state, ended_at_ms, version, digest, body, array_of)
SELECT job, user_name, budget, state, ended_at_ms, version, digest, body, array_of
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::text[])
    AS put (job, user_name, budget, state, ended_at_ms, version, digest, body, array_of)
ON CONFLICT (job) DO UPDATE
SET budget = excluded.budget, state = excluded.state, ended_at_ms = excluded.ended_at_ms, version = excluded.version,
    body = excluded.body
WHERE held.version = excluded.version - 1
RETURNING job

-- name: put_attempts
-- In this order: the attempt that ended makes way for the next one of its job.
INSERT INTO attempt (attempt, job, cluster, grant_seq, state, body)
SELECT attempt, job, cluster, grant_seq, state, body
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[])
    WITH ORDINALITY AS put (attempt, job, cluster, grant_seq, state, body, place)
ORDER BY place
ON CONFLICT (attempt) DO UPDATE SET state = excluded.state, body = excluded.body

-- name: put_claims
INSERT INTO claim (claim, cluster, job, open, body)
SELECT claim, cluster, job, open, body
FROM unnest($1::text[], $2::text[], $3::text[], $4::boolean[], $5::text[])
    WITH ORDINALITY AS put (claim, cluster, job, open, body, place)
ORDER BY place
ON CONFLICT (claim) DO UPDATE SET open = excluded.open, body = excluded.body

-- name: put_nodes
INSERT INTO node (cluster, node, body)
SELECT cluster, node, body FROM unnest($1::text[], $2::text[], $3::text[]) AS put (cluster, node, body)
ON CONFLICT (cluster, node) DO UPDATE SET body = excluded.body

-- name: put_cordons
INSERT INTO cordon (cluster, node, body)
SELECT cluster, node, body FROM unnest($1::text[], $2::text[], $3::text[]) AS put (cluster, node, body)
ON CONFLICT (cluster, node) DO UPDATE SET body = excluded.body

-- name: put_clusters
INSERT INTO cluster (cluster, grant_seq, body)
SELECT cluster, grant_seq, body FROM unnest($1::text[], $2::bigint[], $3::text[]) AS put (cluster, grant_seq, body)
ON CONFLICT (cluster) DO UPDATE SET grant_seq = excluded.grant_seq, body = excluded.body

-- name: put_counted
INSERT INTO counted (cluster, budget, body)
SELECT cluster, budget, body FROM unnest($1::text[], $2::text[], $3::text[]) AS put (cluster, budget, body)
ON CONFLICT (cluster, budget) DO UPDATE SET body = excluded.body

-- name: put_known_budgets
INSERT INTO known_budget (budget, body)
SELECT budget, body FROM unnest($1::text[], $2::text[]) AS put (budget, body)
ON CONFLICT (budget) DO UPDATE SET body = excluded.body

-- name: put_known_revision
INSERT INTO known_revision (body) VALUES ($1) ON CONFLICT (one) DO UPDATE SET body = excluded.body

-- name: put_tree
INSERT INTO tree (revision, budgets) VALUES ($1, $2)
ON CONFLICT (one) DO UPDATE SET revision = excluded.revision, budgets = excluded.budgets

-- name: add_policy
INSERT INTO policy (cluster, revision, from_ms, body) VALUES ($1, $2, $3, $4)

-- name: put_payloads
INSERT INTO payload (job, body) SELECT job, body FROM unnest($1::text[], $2::text[]) AS put (job, body)
ON CONFLICT (job) DO NOTHING

-- name: put_arrays
INSERT INTO unfolding (first, body) SELECT first, body FROM unnest($1::text[], $2::text[]) AS put (first, body)
ON CONFLICT (first) DO UPDATE SET body = excluded.body

-- name: drop_arrays
DELETE FROM unfolding WHERE first = ANY ($1::text[])

-- name: arrays
SELECT body FROM unfolding

-- name: add_decisions
INSERT INTO decision (job, body)
SELECT job, body FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS put (job, body, place) ORDER BY place

-- name: live_jobs
SELECT version, body FROM job WHERE state <> 'ended'

-- name: live_attempts
SELECT body FROM attempt WHERE state <> 'ended'

-- name: open_claims
SELECT body FROM claim WHERE open

-- name: nodes
SELECT body FROM node

-- name: cordons
SELECT body FROM cordon

-- name: clusters
SELECT body FROM cluster

-- name: counted
SELECT body FROM counted

-- name: known_budgets
SELECT body FROM known_budget

-- name: known_revision
SELECT body FROM known_revision

-- name: tree
SELECT revision, budgets FROM tree

-- name: policies
SELECT DISTINCT ON (cluster) body FROM policy ORDER BY cluster, revision DESC

-- name: policies_of
SELECT body FROM policy WHERE cluster = $1 AND ($2::bigint IS NULL OR revision < $2) ORDER BY revision DESC LIMIT $3

-- name: owners
SELECT job, user_name, digest FROM job WHERE job = ANY ($1::text[])

-- name: jobs_by_suffix
-- Two are enough to know that the end of an id is ambiguous. A range, because LIKE with a parameter uses no index.
SELECT version, body FROM job
WHERE reverse(job) COLLATE "C" >= reverse($1) AND reverse(job) COLLATE "C" < reverse($1) || '{'
ORDER BY job LIMIT 2

-- name: page_of_jobs
SELECT job.version, job.body, latest.body AS latest
FROM job
LEFT JOIN LATERAL (SELECT body FROM attempt WHERE attempt.job = job.job ORDER BY grant_seq DESC LIMIT 1) AS latest ON true
WHERE ($1::text IS NULL OR job.user_name = $1)
    AND ($2::text IS NULL OR job.budget = $2)
    AND (cardinality($3::text[]) = 0 OR job.state = ANY ($3))
    AND ($4::text IS NULL OR job.job < $4)
    AND ($6::text IS NULL OR job.array_of = $6)
ORDER BY job.job DESC LIMIT $5

-- name: attempts_of_job
SELECT body FROM attempt WHERE job = $1

-- name: page_of_past
-- One row an attempt; a job without any has one row too. $2 and $3: the job and the attempt that were read last, empty at first.
SELECT job.version, job.body, attempt.body AS attempt
FROM job
LEFT JOIN attempt ON attempt.job = job.job
WHERE (job.ended_at_ms IS NULL OR job.ended_at_ms >= $1)
    AND job.job >= $2
    AND (job.job > $2 OR attempt.attempt > $3)
ORDER BY job.job, attempt.attempt LIMIT $4

-- name: decisions_of_job
SELECT body FROM (SELECT number, body FROM decision WHERE job = $1 ORDER BY number DESC LIMIT $2) AS last ORDER BY number

-- name: payload_of_job
SELECT body FROM payload WHERE job = $1

-- name: forget_ended
DELETE FROM job WHERE job IN (
    SELECT job FROM job WHERE state = 'ended' AND ended_at_ms < $1
        AND (array_of IS DISTINCT FROM job OR NOT EXISTS (SELECT FROM job AS other WHERE other.array_of = job.job AND other.state <> 'ended'))
    ORDER BY ended_at_ms LIMIT $2
)
