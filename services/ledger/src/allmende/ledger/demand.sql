-- The ledger's queries for demand.

-- name: demands
SELECT job, budget, submitted_at_ms, clusters, gpus, gpu_model, slice_ms, asked_said_at_ms, asked_said, known_from_ms,
    ended_at_ms, outcome, first_started_at_ms, ended_said_at_ms, ended_said
FROM demand WHERE job = ANY($1::text[])

-- name: save_demand
INSERT INTO demand (job, budget, submitted_at_ms, clusters, gpus, gpu_model, slice_ms, asked_said_at_ms, asked_said, known_from_ms,
    ended_at_ms, outcome, first_started_at_ms, ended_said_at_ms, ended_said)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT (job) DO UPDATE SET budget = excluded.budget, submitted_at_ms = excluded.submitted_at_ms, clusters = excluded.clusters,
    gpus = excluded.gpus, gpu_model = excluded.gpu_model, slice_ms = excluded.slice_ms, asked_said_at_ms = excluded.asked_said_at_ms,
    asked_said = excluded.asked_said, known_from_ms = excluded.known_from_ms, ended_at_ms = excluded.ended_at_ms,
    outcome = excluded.outcome, first_started_at_ms = excluded.first_started_at_ms, ended_said_at_ms = excluded.ended_said_at_ms,
    ended_said = excluded.ended_said

-- name: first_demand
-- The first word that told what a job asks for, and the cluster's first grant.
SELECT (SELECT min(known_from_ms) FROM demand) AS first_word_ms, (SELECT min(granted_at_ms) FROM attempt WHERE cluster = $1) AS first_grant_ms

-- name: jobs_not_known
SELECT count(*) FROM demand WHERE gpus IS NULL AND outcome IS DISTINCT FROM 'refused' AND (ended_at_ms IS NULL OR ended_at_ms > $1)

-- name: jobs_of_span
-- Jobs that lived in the span and ran on the cluster, or may: with all their attempts, wherever.
SELECT d.budget, d.submitted_at_ms, d.clusters, d.gpus, d.gpu_model, d.slice_ms, d.ended_at_ms, d.outcome, d.first_started_at_ms,
    a.cluster, a.leaf, a.granted_at_ms, a.started_at_ms, a.attempt_ended_at_ms, a.attempt_outcome
FROM demand d CROSS JOIN LATERAL (
    SELECT array_agg(cluster ORDER BY granted_at_ms, grant_seq) AS cluster, array_agg(budget ORDER BY granted_at_ms, grant_seq) AS leaf,
        array_agg(granted_at_ms ORDER BY granted_at_ms, grant_seq) AS granted_at_ms,
        array_agg(coalesce(started_at_ms, protected_from_ms) ORDER BY granted_at_ms, grant_seq) AS started_at_ms,
        array_agg(ended_at_ms ORDER BY granted_at_ms, grant_seq) AS attempt_ended_at_ms,
        array_agg(outcome ORDER BY granted_at_ms, grant_seq) AS attempt_outcome
    FROM attempt WHERE attempt.job = d.job AND attempt.granted_at_ms IS NOT NULL
) AS a
WHERE d.submitted_at_ms < $3 AND (d.ended_at_ms IS NULL OR d.ended_at_ms >= $2) AND d.outcome IS DISTINCT FROM 'refused'
    AND (d.clusters = '{}' OR $1 = ANY(d.clusters) OR $1 = ANY(a.cluster))

-- name: live_at
-- The attempts that lived at an instant, with what they had used by then.
SELECT a.budget, a.gpus, a.replicas, a.slice_ms,
    coalesce(sum(greatest(least(c.to_ms, $2::bigint) - c.from_ms, 0)) FILTER (WHERE c.from_ms IS NOT NULL), 0)::bigint AS counted_ms,
    0::bigint AS rest_ms
FROM attempt a LEFT JOIN counter c ON c.attempt = a.attempt AND c.cluster = a.cluster
WHERE a.cluster = $1 AND a.granted_at_ms <= $2 AND (a.ended_at_ms IS NULL OR a.ended_at_ms > $2)
GROUP BY a.attempt, a.cluster
