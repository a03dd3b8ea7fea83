-- The ledger's queries for device activity.

-- name: known
-- Of counters that are in the books: how far they are believed, and what of their activity was read before.
SELECT c.cluster, c.attempt, c.replica, c.epoch, a.gpus, c.since_ms, c.held_ms, coalesce(y.held_ms, 0) AS read_ms,
    coalesce(y.busy_gpu_ms, 0) AS busy_gpu_ms, y.memory_gpu_ms
FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[]) AS k (cluster, attempt, replica, epoch)
JOIN counter c ON c.attempt = k.attempt AND c.cluster = k.cluster AND c.replica = k.replica AND c.epoch = k.epoch AND c.from_ms IS NOT NULL
JOIN attempt a ON a.attempt = k.attempt AND a.cluster = k.cluster
LEFT JOIN activity y ON y.attempt = k.attempt AND y.cluster = k.cluster AND y.replica = k.replica AND y.epoch = k.epoch

-- name: save_read
INSERT INTO activity (cluster, attempt, replica, epoch, held_ms, busy_gpu_ms, memory_gpu_ms)
SELECT * FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
ON CONFLICT (attempt, cluster, replica, epoch) DO UPDATE SET held_ms = excluded.held_ms, busy_gpu_ms = excluded.busy_gpu_ms,
    memory_gpu_ms = coalesce(excluded.memory_gpu_ms, activity.memory_gpu_ms)

-- name: add_to_hours
INSERT INTO activity_hour AS h (cluster, hour_ms, attempt, watched_gpu_ms, busy_gpu_ms, memory_gpu_ms)
SELECT cluster, hour_ms, attempt, sum(watched), sum(busy), sum(memory)
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[]) AS p (cluster, hour_ms, attempt, watched, busy, memory)
GROUP BY cluster, hour_ms, attempt
ON CONFLICT (cluster, hour_ms, attempt) DO UPDATE SET watched_gpu_ms = h.watched_gpu_ms + excluded.watched_gpu_ms,
    busy_gpu_ms = h.busy_gpu_ms + excluded.busy_gpu_ms,
    memory_gpu_ms = coalesce(h.memory_gpu_ms + excluded.memory_gpu_ms, h.memory_gpu_ms, excluded.memory_gpu_ms)

-- name: by_budget
SELECT a.budget, sum(h.watched_gpu_ms)::bigint AS watched_gpu_ms, sum(h.busy_gpu_ms)::bigint AS busy_gpu_ms
FROM activity_hour h JOIN attempt a ON a.attempt = h.attempt AND a.cluster = h.cluster
WHERE h.cluster = $1 AND h.hour_ms >= $2 AND h.hour_ms < $3 GROUP BY a.budget

-- name: idle
-- Attempts by the held time of hours in which no signal moved. $4: only these budgets, or NULL: all, unallocated ones too.
SELECT h.attempt, a.job, (SELECT p.submitter FROM placed p WHERE p.attempt = h.attempt AND p.cluster = $1 LIMIT 1) AS submitter, a.budget,
    a.gpus * a.replicas AS gpus, a.granted_at_ms, a.ended_at_ms, sum(h.watched_gpu_ms)::bigint AS watched_gpu_ms,
    sum(h.busy_gpu_ms)::bigint AS busy_gpu_ms,
    sum(h.watched_gpu_ms) FILTER (WHERE h.busy_gpu_ms = 0 AND coalesce(h.memory_gpu_ms, 0) = 0)::bigint AS idle_gpu_ms
FROM activity_hour h JOIN attempt a ON a.attempt = h.attempt AND a.cluster = h.cluster
WHERE h.cluster = $1 AND h.hour_ms >= $2 AND h.hour_ms < $3 AND ($4::text[] IS NULL OR a.budget = ANY($4))
GROUP BY h.attempt, a.attempt, a.cluster
HAVING bool_or(h.busy_gpu_ms = 0 AND coalesce(h.memory_gpu_ms, 0) = 0)
ORDER BY idle_gpu_ms DESC, h.attempt OFFSET $5 LIMIT $6
