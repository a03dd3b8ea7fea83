-- The ledger's queries for the verification of its books: only what does not agree comes back.

-- name: begin
-- When anything was first kept of a cluster; NULL: nothing ever.
SELECT min(at_ms) FROM (
    SELECT min(from_ms) AS at_ms FROM posting WHERE cluster = $1
    UNION ALL SELECT min(bucket_ms) FROM usage_bucket WHERE cluster = $1
    UNION ALL SELECT min(granted_at_ms) FROM attempt WHERE cluster = $1
    UNION ALL SELECT min(at_ms) FROM node_step WHERE cluster = $1
) AS firsts

-- name: postings_of_span
SELECT count(*) FROM posting WHERE cluster = $1 AND from_ms >= $2 AND from_ms < $3

-- name: differing_buckets
-- A bucket is the sum of its postings and of the corrections in it. $4: the length of a bucket. An account is `budget/NAME` or `unallocated`.
SELECT bucket_ms, budget, coalesce(p.gpu_ms, 0) AS posted_gpu_ms, coalesce(b.gpu_ms, 0) AS kept_gpu_ms
FROM (
    SELECT bucket_ms, (CASE WHEN account = 'unallocated' THEN '' ELSE substr(account, 8) END) COLLATE "C" AS budget,
        sum(gpu_ms)::bigint AS gpu_ms
    FROM (
        SELECT from_ms / $4 * $4 AS bucket_ms, credit_account AS account, amount_gpu_ms AS gpu_ms
        FROM posting WHERE cluster = $1 AND from_ms >= $2 AND from_ms < $3
        UNION ALL
        SELECT bucket_ms, credit_account, amount_gpu_ms FROM correction_entry WHERE cluster = $1 AND bucket_ms >= $2 AND bucket_ms < $3
        UNION ALL
        SELECT bucket_ms, debit_account, -amount_gpu_ms FROM correction_entry WHERE cluster = $1 AND bucket_ms >= $2 AND bucket_ms < $3
    ) AS entries WHERE account NOT LIKE 'capacity/%' GROUP BY 1, 2
) AS p FULL JOIN (
    SELECT bucket_ms, budget, gpu_ms FROM usage_bucket WHERE cluster = $1 AND bucket_ms >= $2 AND bucket_ms < $3
) AS b USING (bucket_ms, budget)
WHERE coalesce(p.gpu_ms, 0) <> coalesce(b.gpu_ms, 0) ORDER BY bucket_ms, budget

-- name: differing_intervals
-- Of the attempts that were granted in the span, with all their postings, whenever those are. Where the first begins with the counter's
-- interval, the last ends with its posted part, the lengths sum to it, and none begins before another one of the replica ends, the
-- postings cover it exactly once.
WITH granted AS (
    SELECT attempt FROM attempt WHERE cluster = $1 AND granted_at_ms >= $2 AND granted_at_ms < $3
), posted AS (
    SELECT attempt, replica, epoch, min(from_ms) AS first_ms, max(to_ms) AS last_ms, sum(to_ms - from_ms)::bigint AS length_ms,
        count(*) FILTER (WHERE before_ms > from_ms) AS overlaps
    FROM (
        SELECT attempt, replica, epoch, from_ms, to_ms,
            max(to_ms) OVER (PARTITION BY attempt, replica ORDER BY from_ms, to_ms ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                AS before_ms
        FROM posting WHERE cluster = $1 AND attempt IN (SELECT attempt FROM granted)
    ) AS in_order GROUP BY attempt, replica, epoch
), counted AS (
    SELECT attempt, replica, epoch, from_ms, posted_until_ms FROM counter
    WHERE cluster = $1 AND attempt IN (SELECT attempt FROM granted) AND from_ms IS NOT NULL AND posted_until_ms > from_ms
)
SELECT attempt, replica, epoch, c.from_ms, c.posted_until_ms, p.first_ms, p.last_ms, coalesce(p.length_ms, 0) AS length_ms,
    coalesce(p.overlaps, 0) AS overlaps
FROM counted c FULL JOIN posted p USING (attempt, replica, epoch)
WHERE NOT coalesce(p.first_ms = c.from_ms AND p.last_ms = c.posted_until_ms AND p.length_ms = c.posted_until_ms - c.from_ms
    AND p.overlaps = 0, false)
ORDER BY attempt, replica, epoch

-- name: differing_terms
-- Postings that are not on the terms of their attempt's grant.
SELECT p.number, p.attempt, p.from_ms, p.gpus, a.gpus AS granted_gpus, p.credit_account,
    coalesce('budget/' || a.budget, 'unallocated') AS granted_account
FROM posting p LEFT JOIN attempt a ON a.attempt = p.attempt AND a.cluster = p.cluster AND a.granted_at_ms IS NOT NULL
WHERE p.cluster = $1 AND p.from_ms >= $2 AND p.from_ms < $3
    AND NOT coalesce(p.gpus = a.gpus AND p.credit_account = coalesce('budget/' || a.budget, 'unallocated') AND p.replica < a.replicas, false)
ORDER BY p.number
