-- The ledger's queries for reports.

-- name: known_budget
-- Whether the budget was ever in the tree or charged here, and whether another one is below it.
SELECT EXISTS (SELECT FROM share WHERE budget = $2) OR EXISTS (SELECT FROM attempt WHERE cluster = $1 AND budget = $2) AS known,
    EXISTS (SELECT FROM share WHERE budget <> $2 AND $2 = ANY(path) AND until_ms IS NULL) AS has_below

-- name: charged_attempts
-- A budget's attempts that were granted before the span's end: what each was charged before the span and in it, and in all.
-- A counter's row is one contiguous interval, posted or not. An attempt without one held nothing yet: the ends of its interval are NULL,
-- which greatest and least would leave out, and the whole span would remain.
SELECT a.attempt, a.job, a.gpus, a.replicas, a.slice_ms, a.granted_at_ms, a.ended_at_ms, a.outcome,
    coalesce(sum(greatest(least(c.to_ms, $3::bigint) - c.from_ms, 0)) FILTER (WHERE c.from_ms IS NOT NULL), 0)::bigint AS before_ms,
    coalesce(sum(greatest(least(c.to_ms, $4::bigint) - greatest(c.from_ms, $3::bigint), 0)) FILTER (WHERE c.from_ms IS NOT NULL), 0)::bigint
        AS within_ms,
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

-- name: used_by
-- The counters that touch the steps, posted or not, cut at the steps' edges. $5: whether by user; otherwise by the model that the
-- replica's node last named, before the counter began or (a node that reports late) at all.
SELECT s.from_ms AS step_ms, held.name,
    coalesce(sum(part.gpu_ms) FILTER (WHERE held.budget IS NOT NULL), 0)::bigint AS allocated_gpu_ms,
    coalesce(sum(part.gpu_ms) FILTER (WHERE held.budget IS NULL), 0)::bigint AS unallocated_gpu_ms
FROM (
    SELECT a.budget, a.gpus, c.from_ms, c.to_ms, coalesce(CASE WHEN $5::bool THEN p.submitter ELSE (
        SELECT n.gpu_model FROM node_step n WHERE n.cluster = a.cluster AND n.node = p.node AND n.gpu_model IS NOT NULL
        ORDER BY n.at_ms > c.from_ms, abs(n.at_ms - c.from_ms) LIMIT 1
    ) END, '') COLLATE "C" AS name
    FROM attempt a JOIN counter c ON c.attempt = a.attempt AND c.cluster = a.cluster
    LEFT JOIN placed p ON p.attempt = c.attempt AND p.cluster = c.cluster
        AND p.first_replica <= c.replica AND c.replica < p.first_replica + p.replicas
    WHERE a.cluster = $1 AND a.granted_at_ms < $3 AND (a.ended_at_ms IS NULL OR a.ended_at_ms > $2)
        AND c.from_ms IS NOT NULL AND c.from_ms < $3 AND c.to_ms > greatest($2, $6)
) AS held
CROSS JOIN LATERAL generate_series($2 + greatest(held.from_ms - $2, 0) / $4 * $4, least(held.to_ms, $3) - 1, $4::bigint) AS s (from_ms)
CROSS JOIN LATERAL (
    SELECT held.gpus * (least(held.to_ms, s.from_ms + $4, $3) - greatest(held.from_ms, s.from_ms)) AS gpu_ms
) AS part
WHERE (s.from_ms, held.name) > ($6::bigint, $7::text COLLATE "C")
GROUP BY s.from_ms, held.name ORDER BY s.from_ms, held.name LIMIT $8
