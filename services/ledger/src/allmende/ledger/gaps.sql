-- The ledger's queries for gaps.

-- name: add
INSERT INTO gap (attempt, cluster, replica, from_ms, to_ms, closed_at_ms)
SELECT *, $6::bigint FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[]) ON CONFLICT DO NOTHING

-- name: page
-- $2, $3: the span; $4: now; $5: the silence; $6: only open ones; $7 to $9: the last of the page before.
WITH lives AS (
    SELECT a.attempt, r.replica, a.gpus, a.budget, coalesce(a.started_at_ms, a.protected_from_ms) AS started_ms, a.ended_at_ms
    FROM attempt a CROSS JOIN generate_series(0, a.replicas - 1) AS r (replica)
    WHERE a.cluster = $1 AND a.granted_at_ms < $3 AND (a.ended_at_ms IS NULL OR a.ended_at_ms > $2)
), edges AS (
    -- What is counted, and where an attempt's life ends: at its end, or now.
    SELECT l.*, c.from_ms, c.to_ms, 'epoch' AS closed_by
    FROM lives l JOIN counter c ON c.cluster = $1 AND c.attempt = l.attempt AND c.replica = l.replica
    WHERE c.from_ms IS NOT NULL AND c.to_ms > c.from_ms
    UNION ALL
    SELECT l.*, coalesce(l.ended_at_ms, $4), NULL, CASE WHEN l.ended_at_ms IS NOT NULL THEN 'end' END FROM lives l
), holes AS (
    SELECT attempt, replica, gpus, budget, closed_by, from_ms AS to_ms, greatest(started_ms, max(to_ms) OVER (
        PARTITION BY attempt, replica ORDER BY from_ms, to_ms ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )) AS from_ms
    FROM edges
)
SELECT * FROM (
    SELECT attempt, replica, gpus, budget, from_ms, CASE WHEN closed_by IS NOT NULL THEN to_ms END AS to_ms, closed_by,
        gpus * (to_ms - from_ms) AS missing_gpu_ms
    FROM holes WHERE to_ms - from_ms > $5 AND from_ms < $3 AND to_ms > $2
    UNION ALL
    SELECT g.attempt, g.replica, a.gpus, a.budget, g.from_ms, g.to_ms, 'counter', 0
    FROM gap g JOIN attempt a USING (attempt, cluster) WHERE g.cluster = $1 AND g.from_ms < $3 AND g.to_ms > $2
) AS gaps
WHERE (closed_by IS NULL OR NOT $6) AND (from_ms, attempt, replica) > ($7::bigint, $8::text COLLATE "C", $9::int)
ORDER BY from_ms, attempt, replica LIMIT $10
