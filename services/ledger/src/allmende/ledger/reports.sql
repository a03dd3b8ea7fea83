-- The ledger's queries for reports.

-- name: known_budget
-- Whether the budget was ever in the tree or charged here, and whether another one is below it.
SELECT EXISTS (SELECT FROM share WHERE budget = $2) OR EXISTS (SELECT FROM attempt WHERE cluster = $1 AND budget = $2) AS known,
    EXISTS (SELECT FROM share WHERE budget <> $2 AND $2 = ANY(path) AND until_ms IS NULL) AS has_below

-- name: charged_attempts
-- A budget's attempts that were granted before the span's end: what each was charged before the span and in it, and in all.
-- A counter's row is one contiguous interval, posted or not.
SELECT a.attempt, a.job, a.gpus, a.replicas, a.slice_ms, a.granted_at_ms, a.ended_at_ms, a.outcome,
    coalesce(sum(greatest(least(c.to_ms, $3::bigint) - c.from_ms, 0)), 0)::bigint AS before_ms,
    coalesce(sum(greatest(least(c.to_ms, $4::bigint) - greatest(c.from_ms, $3::bigint), 0)), 0)::bigint AS within_ms,
    coalesce(sum(c.to_ms - c.from_ms), 0)::bigint AS counted_ms
FROM attempt a LEFT JOIN counter c ON c.attempt = a.attempt AND c.cluster = a.cluster AND c.from_ms IS NOT NULL
WHERE a.cluster = $1 AND a.budget = $2 AND a.granted_at_ms < $4
GROUP BY a.attempt, a.cluster ORDER BY a.attempt

-- name: used
-- The buckets, and what running attempts were counted beyond their postings: that lies inside one bucket, the one where their postings end.
SELECT step_ms, budget, sum(gpu_ms)::bigint AS gpu_ms FROM (
    SELECT $2 + (bucket_ms - $2) / $4 * $4 AS step_ms, budget, gpu_ms FROM usage_bucket
    WHERE cluster = $1 AND bucket_ms >= $2::bigint AND bucket_ms < $3::bigint
    UNION ALL
    SELECT $2 + (c.posted_until_ms - $2) / $4 * $4, coalesce(a.budget, ''), a.gpus * (c.to_ms - c.posted_until_ms)
    FROM attempt a JOIN counter c ON c.attempt = a.attempt AND c.cluster = a.cluster
    WHERE a.cluster = $1 AND a.ended_at_ms IS NULL AND a.granted_at_ms IS NOT NULL AND c.from_ms IS NOT NULL
        AND c.posted_until_ms < c.to_ms AND c.posted_until_ms >= $2 AND c.posted_until_ms < $3
) AS parts
WHERE (step_ms, budget) > ($5::bigint, $6::text COLLATE "C")
GROUP BY step_ms, budget ORDER BY step_ms, budget LIMIT $7
