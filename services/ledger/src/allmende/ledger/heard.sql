-- The ledger's queries for what was heard, and the seals.

-- name: day
SELECT to_regclass('heard_' || $1::bigint) IS NOT NULL

-- name: heads
SELECT cluster FROM heard_head WHERE cluster = ANY($1::text[])

-- name: begin
INSERT INTO heard_head (cluster, number, words, sealed_at_ms) VALUES ($1, 0, 0, $2) ON CONFLICT DO NOTHING

-- name: add
WITH head AS (
    UPDATE heard_head SET number = number + 1, words = words + $3 WHERE cluster = $1 RETURNING number, words, sealed_at_ms
), kept AS (
    INSERT INTO heard (cluster, number, at_ms, words, said) SELECT $1, number, $2, $3, $4 FROM head
)
SELECT number, words, sealed_at_ms FROM head

-- name: attempts
-- Those of which more may be said. One that is complete is left out: granted, ended, and every replica has said its last or reached
-- the end. Of what ended a month ago nothing more comes.
SELECT cluster, attempt, job, budget, gpus, replicas, slice_ms, granted_at_ms, grant_seq, started_at_ms, protected_from_ms,
    protected_until_ms, ended_at_ms, outcome
FROM attempt a WHERE cluster = $1 AND (granted_at_ms IS NULL OR ended_at_ms IS NULL OR (ended_at_ms > $2 AND outcome <> 'never_started' AND (
    SELECT count(DISTINCT c.replica) FILTER (WHERE c.final OR c.to_ms >= a.ended_at_ms) FROM counter c
    WHERE c.attempt = a.attempt AND c.cluster = a.cluster
) < a.replicas))
ORDER BY attempt

-- name: counters
SELECT cluster, attempt, replica, epoch, seq, since_ms, held_ms, used_gpu_ms, from_ms, to_ms, posted_until_ms, final, event
FROM counter WHERE cluster = $1 AND attempt = ANY($2::text[]) ORDER BY attempt, replica, epoch

-- name: last_posting
SELECT coalesce(max(number), 0) FROM posting WHERE cluster = $1

-- name: add_seal
WITH head AS (UPDATE heard_head SET words = 0, sealed_at_ms = $2 WHERE cluster = $1 RETURNING number)
INSERT INTO seal (cluster, number, at_ms, posting, state) SELECT $1, number, $2, $3, $4 FROM head ON CONFLICT DO NOTHING

-- name: seal
-- The one that is asked for, or the oldest.
SELECT number, at_ms, posting, state FROM seal WHERE cluster = $1 AND ($2::bigint IS NULL OR number = $2) ORDER BY number LIMIT 1

-- name: next_seal
SELECT number, at_ms, posting, state FROM seal WHERE cluster = $1 AND number > $2 ORDER BY number LIMIT 1

-- name: heard
SELECT number, at_ms, said FROM heard WHERE cluster = $1 AND number > $2 AND number <= $3 ORDER BY number LIMIT $4

-- name: posted
SELECT attempt, replica, epoch, from_ms, to_ms, gpus, credit_account FROM posting WHERE cluster = $1 AND number > $2 AND number <= $3

-- name: posted_before
SELECT DISTINCT attempt FROM posting WHERE cluster = $1 AND attempt = ANY($2::text[]) AND number <= $3

-- name: days
SELECT substr(c.relname, 7)::bigint AS day FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'heard'::regclass ORDER BY day

-- name: lasts
-- Of each cluster the last batch before an instant, and whether a seal comes after it.
SELECT h.cluster, max(h.number) AS number, EXISTS (
    SELECT FROM seal s WHERE s.cluster = h.cluster AND s.number >= max(h.number)
) AS sealed
FROM heard h WHERE h.at_ms < $1 GROUP BY h.cluster ORDER BY h.cluster

-- name: forget_seals
DELETE FROM seal WHERE cluster = $1 AND number < $2
