-- The ledger's queries for its quarantine.

-- name: page
-- What waits or was released, and the counters that wait for a grant. $2: one reason, or NULL; $3: also what was released.
SELECT i.what, i.code, i.sentence, i.excess_gpu_ms, i.most_excess_gpu_ms, i.times, i.first_at_ms, i.last_at_ms, i.last_event,
    r.id, r.counted_gpu_ms, r.author, r.reason, r.at_ms
FROM (
    SELECT cluster, what, code, sentence, excess_gpu_ms, most_excess_gpu_ms, times, first_at_ms, last_at_ms, last_event, released_at_ms
    FROM fault WHERE cluster = $1
    UNION ALL
    SELECT c.cluster, c.attempt || '/' || c.replica || '/' || c.epoch, 'unknown_attempt',
        'nobody has granted attempt ' || c.attempt || ': it counts by itself once the grant is heard',
        c.used_gpu_ms, c.used_gpu_ms, NULL, c.since_ms, c.since_ms + c.held_ms, c.event, NULL
    FROM attempt a JOIN counter c USING (attempt, cluster) WHERE a.cluster = $1 AND a.granted_at_ms IS NULL
) AS i
LEFT JOIN LATERAL (
    SELECT * FROM release r WHERE r.cluster = i.cluster AND r.what = i.what AND r.code = i.code ORDER BY r.at_ms DESC, r.id DESC LIMIT 1
) AS r ON i.released_at_ms IS NOT NULL
WHERE ($2::text IS NULL OR i.code = $2) AND ($3 OR i.released_at_ms IS NULL) AND (i.what, i.code) > ($4::text COLLATE "C", $5::text COLLATE "C")
ORDER BY i.what, i.code LIMIT $6

-- name: item
SELECT excess_gpu_ms, claim, released_at_ms FROM fault WHERE cluster = $1 AND what = $2 AND code = $3

-- name: release
SELECT cluster, what, code, counted_gpu_ms, author, reason, at_ms FROM release WHERE id = $1

-- name: unknown
SELECT EXISTS (
    SELECT FROM attempt a JOIN counter c USING (attempt, cluster)
    WHERE a.cluster = $1 AND a.granted_at_ms IS NULL AND c.attempt || '/' || c.replica || '/' || c.epoch = $2
)

-- name: add_release
INSERT INTO release (id, cluster, what, code, claim, counted_gpu_ms, author, reason, at_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: mark_released
UPDATE fault SET released_at_ms = $4 WHERE cluster = $1 AND what = $2 AND code = $3
