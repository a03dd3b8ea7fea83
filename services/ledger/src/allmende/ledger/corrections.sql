-- The ledger's queries for corrections. An account is `budget/NAME`, `unallocated` or `capacity/CLUSTER`.

-- name: one
SELECT number, id, cluster, debit_account, credit_account, from_ms, to_ms, amount_gpu_ms, amount_gpu_ms AS within_gpu_ms, author, reason,
    at_ms, asked_gpu_ms
FROM correction WHERE id = $1

-- name: room
-- What an account has by bucket. $2: the budget, '' unallocated.
SELECT bucket_ms, gpu_ms FROM usage_bucket WHERE cluster = $1 AND budget = $2 AND bucket_ms >= $3 AND bucket_ms < $4 AND gpu_ms > 0

-- name: charged
SELECT bucket_ms, sum(gpu_ms)::bigint AS gpu_ms FROM usage_bucket WHERE cluster = $1 AND bucket_ms >= $2 AND bucket_ms < $3 GROUP BY bucket_ms

-- name: add
INSERT INTO correction (id, cluster, debit_account, credit_account, from_ms, to_ms, amount_gpu_ms, asked_gpu_ms, author, reason, at_ms)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) RETURNING number

-- name: add_entries
INSERT INTO correction_entry (correction, cluster, debit_account, credit_account, bucket_ms, amount_gpu_ms)
SELECT $1, $2, $3, $4, * FROM unnest($5::bigint[], $6::bigint[])

-- name: take
UPDATE usage_bucket b SET gpu_ms = b.gpu_ms - e.gpu_ms FROM unnest($3::bigint[], $4::bigint[]) AS e (bucket_ms, gpu_ms)
WHERE b.cluster = $1 AND b.budget = $2 AND b.bucket_ms = e.bucket_ms

-- name: charge
INSERT INTO usage_bucket (cluster, budget, bucket_ms, gpu_ms) SELECT $1, $2, * FROM unnest($3::bigint[], $4::bigint[])
ON CONFLICT (cluster, bucket_ms, budget) DO UPDATE SET gpu_ms = usage_bucket.gpu_ms + excluded.gpu_ms

-- name: page
-- $2: an account, or NULL; an entry counts at the end of its bucket ($5: the length), in ($3, $4].
SELECT c.number, c.id, c.cluster, c.debit_account, c.credit_account, c.from_ms, c.to_ms, c.amount_gpu_ms, sum(e.amount_gpu_ms)::bigint
    AS within_gpu_ms, c.author, c.reason, c.at_ms
FROM correction c JOIN correction_entry e ON e.correction = c.id
WHERE c.cluster = $1 AND ($2::text IS NULL OR c.debit_account = $2 OR c.credit_account = $2)
    AND e.bucket_ms > $3::bigint - $5::bigint AND e.bucket_ms <= $4::bigint - $5::bigint AND c.number > $6
GROUP BY c.id ORDER BY c.number LIMIT $7

-- name: corrected
-- What corrections charge to a budget (below 0: take off it) before a span, and in it.
SELECT coalesce(sum(gpu_ms) FILTER (WHERE bucket_ms <= $3::bigint - $5::bigint), 0)::bigint AS before_gpu_ms,
    coalesce(sum(gpu_ms) FILTER (WHERE bucket_ms > $3::bigint - $5::bigint), 0)::bigint AS within_gpu_ms
FROM (
    SELECT bucket_ms, amount_gpu_ms AS gpu_ms FROM correction_entry WHERE cluster = $1 AND credit_account = 'budget/' || $2::text
    UNION ALL
    SELECT bucket_ms, -amount_gpu_ms FROM correction_entry WHERE cluster = $1 AND debit_account = 'budget/' || $2::text
) AS entries WHERE bucket_ms <= $4::bigint - $5::bigint
