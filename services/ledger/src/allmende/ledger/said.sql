-- The ledger's queries for what viewers hear.

-- name: turn
-- The clusters whose use was last looked at so long ago; whoever gets a row says it.
INSERT INTO usage_turn (cluster, as_of_ms) SELECT cluster, $1 FROM cluster ORDER BY cluster
ON CONFLICT (cluster) DO UPDATE SET as_of_ms = excluded.as_of_ms WHERE usage_turn.as_of_ms <= excluded.as_of_ms - $2::bigint
RETURNING cluster

-- name: changed_usage
-- Of some clusters the budgets whose use is another one than was said: leaves of the tree, and whoever was charged today or runs.
-- $2: when the hour began, $3: when the day did. What was said before and is nothing now is said once more.
WITH part AS (
    SELECT c.cluster, s.budget, 0 AS attempts, 0 AS gpus, 0::bigint AS hour_gpu_ms, 0::bigint AS day_gpu_ms
    FROM unnest($1::text[]) AS c (cluster) CROSS JOIN share s
    WHERE s.until_ms IS NULL AND s.cluster = '' AND s.budget NOT IN (
        SELECT path[cardinality(path) - 1] FROM share WHERE until_ms IS NULL AND cluster = '' AND cardinality(path) > 1
    )
    UNION ALL
    SELECT cluster, budget, 0, 0, CASE WHEN bucket_ms >= $2::bigint THEN gpu_ms ELSE 0 END, gpu_ms FROM usage_bucket
    WHERE cluster = ANY($1::text[]) AND bucket_ms >= $3::bigint AND budget <> ''
    UNION ALL
    SELECT a.cluster, a.budget, 0, 0, CASE WHEN c.posted_until_ms >= $2::bigint THEN a.gpus * (c.to_ms - c.posted_until_ms) ELSE 0 END,
        a.gpus * (c.to_ms - c.posted_until_ms)
    FROM attempt a JOIN counter c ON c.attempt = a.attempt AND c.cluster = a.cluster
    WHERE a.cluster = ANY($1::text[]) AND a.ended_at_ms IS NULL AND a.granted_at_ms IS NOT NULL AND a.budget IS NOT NULL
        AND c.from_ms IS NOT NULL AND c.posted_until_ms >= $3::bigint
    UNION ALL
    SELECT cluster, budget, 1, gpus * replicas, 0, 0 FROM attempt
    WHERE cluster = ANY($1::text[]) AND ended_at_ms IS NULL AND granted_at_ms IS NOT NULL AND budget IS NOT NULL
    UNION ALL
    SELECT cluster, budget, 0, 0, 0, 0 FROM usage_said WHERE cluster = ANY($1::text[])
)
INSERT INTO usage_said AS s (cluster, budget, attempts, gpus, hour_from_ms, hour_gpu_ms, day_gpu_ms)
SELECT cluster, budget, sum(attempts), sum(gpus), $2::bigint, sum(hour_gpu_ms), sum(day_gpu_ms) FROM part GROUP BY cluster, budget ORDER BY 1, 2
ON CONFLICT (cluster, budget) DO UPDATE SET attempts = excluded.attempts, gpus = excluded.gpus, hour_from_ms = excluded.hour_from_ms,
    hour_gpu_ms = excluded.hour_gpu_ms, day_gpu_ms = excluded.day_gpu_ms
WHERE (s.attempts, s.gpus, s.hour_from_ms, s.hour_gpu_ms, s.day_gpu_ms)
    <> (excluded.attempts, excluded.gpus, excluded.hour_from_ms, excluded.hour_gpu_ms, excluded.day_gpu_ms)
RETURNING cluster, budget, attempts, gpus, hour_from_ms, hour_gpu_ms, day_gpu_ms
