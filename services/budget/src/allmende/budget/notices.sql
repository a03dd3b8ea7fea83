-- name: watches
SELECT cluster, budget, usage_revision, reached, paced, sampled_at_ms
FROM watch JOIN unnest($1::text[], $2::text[]) AS asked (cluster, budget) USING (cluster, budget)

-- name: keep_watches
INSERT INTO watch (cluster, budget, usage_revision, reached, paced, sampled_at_ms)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::int[], $5::boolean[], $6::bigint[])
ON CONFLICT (cluster, budget) DO UPDATE SET
    usage_revision = excluded.usage_revision,
    reached = excluded.reached,
    paced = excluded.paced,
    sampled_at_ms = excluded.sampled_at_ms

-- name: keep_samples
INSERT INTO pace_sample (cluster, budget, at_ms, used_gpu_ms, entitlement_gpu_ms)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])
ON CONFLICT DO NOTHING

-- name: forget_samples
-- Of the budgets that get a new one, so that the cost follows the growth.
DELETE FROM pace_sample USING unnest($1::text[], $2::text[], $3::bigint[]) AS newest (cluster, budget, at_ms)
WHERE pace_sample.cluster = newest.cluster AND pace_sample.budget = newest.budget AND pace_sample.at_ms < newest.at_ms - $4

-- name: samples
SELECT cluster, budget, at_ms, used_gpu_ms, entitlement_gpu_ms
FROM pace_sample JOIN unnest($1::text[], $2::text[]) AS asked (cluster, budget) USING (cluster, budget)
ORDER BY cluster, budget, at_ms

-- name: definitions
-- The row in force of each budget is its newest.
SELECT DISTINCT ON (budget) definition FROM definition WHERE budget = ANY ($1::text[]) ORDER BY budget, from_revision DESC

-- name: add_notice
INSERT INTO notice (budget, cluster, notice) VALUES ($1, $2, $3) RETURNING number

-- name: add_delivery
INSERT INTO delivery (number) VALUES ($1)

-- name: forget_notices
DELETE FROM notice WHERE said_at < clock_timestamp() - make_interval(days => $1)

-- name: notices_before
SELECT number, notice FROM notice
WHERE ($1::text IS NULL OR budget = $1) AND ($2::text IS NULL OR cluster = $2) AND ($3::bigint IS NULL OR number < $3)
ORDER BY number DESC LIMIT $4

-- name: deliveries_before
SELECT number, notice, state, tries, problem,
    (extract(epoch FROM next_try_at) * 1000)::bigint AS next_try_at_ms, (extract(epoch FROM settled_at) * 1000)::bigint AS settled_at_ms
FROM delivery JOIN notice USING (number)
WHERE ($1::text IS NULL OR state = $1) AND ($2::bigint IS NULL OR number < $2)
ORDER BY number DESC LIMIT $3

-- name: take_due_delivery
-- Out of the way of other replicas for as long as a try may take; who dies meanwhile leaves it due again.
UPDATE delivery SET tries = tries + 1, next_try_at = clock_timestamp() + make_interval(secs => $1)
FROM notice
WHERE notice.number = delivery.number AND delivery.number = (
    SELECT number FROM delivery WHERE state = 'waiting' AND next_try_at <= clock_timestamp()
    ORDER BY next_try_at, number LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING delivery.number, tries, notice.notice, extract(epoch FROM clock_timestamp())::bigint AS now_s

-- name: delivered
UPDATE delivery SET state = 'delivered', next_try_at = NULL, settled_at = clock_timestamp(), problem = ''
WHERE number = $1 AND state = 'waiting'

-- name: given_up
UPDATE delivery SET state = 'given_up', next_try_at = NULL, settled_at = clock_timestamp(), problem = $3
WHERE number = $1 AND tries = $2 AND state = 'waiting'

-- name: failed
UPDATE delivery SET next_try_at = clock_timestamp() + make_interval(secs => $4), problem = $3
WHERE number = $1 AND tries = $2 AND state = 'waiting'

-- name: retry
WITH again AS (
    UPDATE delivery SET state = 'waiting', tries = 0, next_try_at = clock_timestamp(), settled_at = NULL
    WHERE state = 'given_up' AND ($1::bigint IS NULL OR number = $1)
    RETURNING number
)
SELECT count(*) FROM again
