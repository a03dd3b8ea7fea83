-- The ledger's queries. Arrays are columns: one statement a kind of row and batch.

-- name: attempts
-- On whichever cluster: an attempt that another cluster was granted must be recognised.
SELECT cluster, attempt, job, budget, gpus, replicas, slice_ms, granted_at_ms, grant_seq, started_at_ms, protected_from_ms,
    protected_until_ms, ended_at_ms, outcome
FROM attempt WHERE attempt = ANY($1::text[])

-- name: counters_of_replicas
SELECT c.cluster, c.attempt, c.replica, c.epoch, c.seq, c.since_ms, c.held_ms, c.used_gpu_ms, c.from_ms, c.to_ms, c.posted_until_ms,
    c.final, c.event
FROM unnest($1::text[], $2::text[], $3::int[]) AS k (cluster, attempt, replica)
JOIN counter c ON c.attempt = k.attempt AND c.cluster = k.cluster AND c.replica = k.replica

-- name: counters_of_attempts
SELECT c.cluster, c.attempt, c.replica, c.epoch, c.seq, c.since_ms, c.held_ms, c.used_gpu_ms, c.from_ms, c.to_ms, c.posted_until_ms,
    c.final, c.event
FROM unnest($1::text[], $2::text[]) AS k (cluster, attempt)
JOIN counter c ON c.attempt = k.attempt AND c.cluster = k.cluster

-- name: save_attempts
INSERT INTO attempt (cluster, attempt, job, budget, gpus, replicas, slice_ms, granted_at_ms, grant_seq, started_at_ms, protected_from_ms,
    protected_until_ms, ended_at_ms, outcome)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[], $6::int[], $7::bigint[], $8::bigint[], $9::bigint[],
    $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::text[])
ON CONFLICT (attempt, cluster) DO UPDATE SET job = excluded.job, budget = excluded.budget, gpus = excluded.gpus,
    replicas = excluded.replicas, slice_ms = excluded.slice_ms, granted_at_ms = excluded.granted_at_ms, grant_seq = excluded.grant_seq,
    started_at_ms = excluded.started_at_ms, protected_from_ms = excluded.protected_from_ms,
    protected_until_ms = excluded.protected_until_ms, ended_at_ms = excluded.ended_at_ms, outcome = excluded.outcome

-- name: save_counters
INSERT INTO counter (cluster, attempt, replica, epoch, seq, since_ms, held_ms, used_gpu_ms, from_ms, to_ms, posted_until_ms, final, event)
SELECT * FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
    $10::bigint[], $11::bigint[], $12::bool[], $13::text[])
ON CONFLICT (attempt, cluster, replica, epoch) DO UPDATE SET seq = excluded.seq, held_ms = excluded.held_ms,
    used_gpu_ms = excluded.used_gpu_ms, from_ms = excluded.from_ms, to_ms = excluded.to_ms, posted_until_ms = excluded.posted_until_ms,
    final = excluded.final, event = excluded.event

-- name: add_placed
INSERT INTO placed (attempt, cluster, first_replica, replicas, node, submitter)
SELECT * FROM unnest($1::text[], $2::text[], $3::int[], $4::int[], $5::text[], $6::text[])

-- name: add_postings
-- No ON CONFLICT: an instant that is posted twice is a broken invariant, not something to pass over.
INSERT INTO posting (cluster, attempt, replica, epoch, from_ms, to_ms, gpus, debit_account, credit_account, amount_gpu_ms, event)
SELECT cluster, attempt, replica, epoch, from_ms, to_ms, gpus, 'capacity/' || cluster, coalesce('budget/' || budget, 'unallocated'),
    gpus * (to_ms - from_ms), event
FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::int[], $8::text[], $9::text[])
    AS p (cluster, attempt, replica, epoch, from_ms, to_ms, gpus, budget, event)

-- name: add_to_buckets
INSERT INTO usage_bucket (cluster, budget, bucket_ms, gpu_ms)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
ON CONFLICT (cluster, bucket_ms, budget) DO UPDATE SET gpu_ms = usage_bucket.gpu_ms + excluded.gpu_ms

-- name: add_faults
INSERT INTO fault (cluster, what, code, sentence, excess_gpu_ms, most_excess_gpu_ms, times, first_event, last_event, first_at_ms, last_at_ms,
    claim, claim_size)
SELECT cluster, what, code, sentence, excess, most, times, first_event, last_event, $9, $9, claim, claim_size
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[], $10::text[],
    $11::text[], $12::bigint[]) AS f (cluster, what, code, sentence, excess, most, times, first_event, last_event, claim, claim_size)
ON CONFLICT (cluster, what, code) DO UPDATE SET sentence = excluded.sentence, excess_gpu_ms = excluded.excess_gpu_ms,
    most_excess_gpu_ms = greatest(fault.most_excess_gpu_ms, excluded.most_excess_gpu_ms), times = fault.times + excluded.times,
    last_event = excluded.last_event, last_at_ms = excluded.last_at_ms, released_at_ms = NULL,
    claim = CASE WHEN fault.released_at_ms IS NULL AND fault.claim_size > excluded.claim_size THEN fault.claim ELSE excluded.claim END,
    claim_size = CASE WHEN fault.released_at_ms IS NULL THEN greatest(fault.claim_size, excluded.claim_size) ELSE excluded.claim_size END

-- name: add_clusters
INSERT INTO cluster (cluster) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING

-- name: add_steps
INSERT INTO node_step (cluster, node, at_ms, seq, installed, healthy, gpu_model)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::int[], $6::int[], $7::text[])
ON CONFLICT (cluster, node, at_ms) DO UPDATE SET seq = excluded.seq, installed = excluded.installed, healthy = excluded.healthy,
    gpu_model = excluded.gpu_model
WHERE excluded.seq > node_step.seq

-- name: steps
-- Of each node the reports in the window and the last one before it.
SELECT cluster, node, at_ms, seq, installed, healthy FROM node_step WHERE cluster = $1 AND at_ms >= $2 AND at_ms < $3
UNION ALL
(SELECT DISTINCT ON (node) cluster, node, at_ms, seq, installed, healthy FROM node_step WHERE cluster = $1 AND at_ms < $2
ORDER BY node, at_ms DESC)

-- name: clusters
SELECT cluster, usage_revision, as_of_ms, counted_grants, content FROM cluster ORDER BY cluster

-- name: one_cluster
SELECT cluster, usage_revision, as_of_ms, counted_grants, content FROM cluster WHERE cluster = $1

-- name: counted_grants
-- The end of the unbroken run of grants that begins right after what was counted before.
SELECT coalesce(max(grant_seq), $2) FROM (
    SELECT grant_seq, row_number() OVER (ORDER BY grant_seq) AS place FROM attempt WHERE cluster = $1 AND grant_seq > $2
) AS younger WHERE grant_seq = $2 + place

-- name: save_round
UPDATE cluster SET usage_revision = $2, as_of_ms = $3, counted_grants = $4, content = $5 WHERE cluster = $1

-- name: charged
SELECT budget, sum(gpu_ms)::bigint AS gpu_ms FROM usage_bucket
WHERE cluster = $1 AND bucket_ms >= $2 AND bucket_ms < $3 AND budget <> '' GROUP BY budget

-- name: charged_by_age
-- $4: weights by age in buckets (2^32 = 1), the bucket that begins at $5 first. numeric: a large cluster's bucket x 2^32 needs 64 bits.
SELECT budget, sum(gpu_ms::numeric * ($4::bigint[])[($5 - bucket_ms) / $6 + 1]) AS gpu_ms FROM usage_bucket
WHERE cluster = $1 AND bucket_ms >= $2 AND bucket_ms < $3 AND budget <> '' GROUP BY budget

-- name: settled
SELECT settled_ms, settled_by FROM cluster WHERE cluster = $1

-- name: settle
UPDATE cluster SET settled_ms = $2, settled_by = pg_current_xact_id()::text::bigint WHERE cluster = $1 AND settled_ms < $2

-- name: live_by_age
-- As `live`; a replica's rest never crosses a bucket's edge, so it has one weight ($3 to $5 as above).
SELECT a.budget, a.gpus, a.replicas, a.slice_ms, coalesce(sum(c.to_ms - c.from_ms), 0)::bigint AS counted_ms,
    coalesce(sum(floor((c.to_ms - greatest(c.posted_until_ms, $2))::numeric
        -- A counter may be a few seconds ahead, in the next bucket.
        * ($3::bigint[])[greatest(($4 - (c.to_ms - 1) / $5 * $5) / $5 + 1, 1)] / 4294967296))
        FILTER (WHERE c.from_ms IS NOT NULL AND c.to_ms > greatest(c.posted_until_ms, $2)), 0)::bigint AS rest_ms
FROM attempt a LEFT JOIN counter c ON c.attempt = a.attempt AND c.cluster = a.cluster
WHERE a.cluster = $1 AND a.ended_at_ms IS NULL AND a.granted_at_ms IS NOT NULL
GROUP BY a.attempt, a.cluster

-- name: live
SELECT a.budget, a.gpus, a.replicas, a.slice_ms, coalesce(sum(c.to_ms - c.from_ms), 0)::bigint AS counted_ms,
    coalesce(sum(c.to_ms - greatest(c.posted_until_ms, $2)) FILTER (WHERE c.from_ms IS NOT NULL AND c.to_ms > $2), 0)::bigint AS rest_ms
FROM attempt a LEFT JOIN counter c ON c.attempt = a.attempt AND c.cluster = a.cluster
WHERE a.cluster = $1 AND a.ended_at_ms IS NULL AND a.granted_at_ms IS NOT NULL
GROUP BY a.attempt, a.cluster

-- name: shares
-- The general ones and those of one cluster.
SELECT budget, path, ppm, covers, from_ms, until_ms, revision, cluster FROM share
WHERE (until_ms IS NULL OR until_ms > $1) AND cluster IN ('', $2)

-- name: revision_in_force
SELECT max(revision) FROM tree_revision WHERE applied AND in_force_from_ms <= $1

-- name: add_changes
INSERT INTO tree_change (budget, revision, definition) SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[]) ON CONFLICT DO NOTHING

-- name: add_revision
INSERT INTO tree_revision (revision, effective_from_ms, budgets, digest) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING

-- name: pending_revisions
SELECT revision, effective_from_ms, budgets, digest FROM tree_revision WHERE NOT applied ORDER BY revision

-- name: applied_revisions
SELECT revision, effective_from_ms, budgets, digest FROM tree_revision WHERE applied ORDER BY revision

-- name: last_in_force
SELECT revision, in_force_from_ms FROM tree_revision WHERE applied ORDER BY revision DESC LIMIT 1

-- name: definitions
SELECT definition FROM (
    SELECT DISTINCT ON (budget) definition FROM tree_change WHERE revision <= $1 ORDER BY budget, revision DESC
) AS newest WHERE definition IS NOT NULL

-- name: open_shares
SELECT budget, path, ppm, covers, from_ms, until_ms, revision, cluster FROM share WHERE until_ms IS NULL

-- name: forget_shares
DELETE FROM share

-- name: forget_empty_shares
DELETE FROM share WHERE until_ms IS NULL AND budget = ANY($1::text[]) AND from_ms = $2 AND cluster = $3

-- name: end_shares
UPDATE share SET until_ms = $2 WHERE until_ms IS NULL AND budget = ANY($1::text[]) AND cluster = $3

-- name: begin_share
INSERT INTO share (budget, path, ppm, covers, from_ms, revision, cluster) VALUES ($1, $2, $3, $4, $5, $6, $7)

-- name: mark_applied
UPDATE tree_revision SET applied = true, in_force_from_ms = $2 WHERE revision = $1

-- name: postings_page
SELECT number, attempt, replica, epoch, from_ms, to_ms, gpus, nullif(credit_account, 'unallocated') AS credit_account, amount_gpu_ms
FROM posting WHERE cluster = $1 AND number > $2 ORDER BY number LIMIT $3

-- name: posted_by_step
SELECT (s.from_ms - $2) / $3 AS number, p.credit_account = 'unallocated' AS unallocated,
    sum(p.gpus * (least(p.to_ms, s.from_ms + $3) - greatest(p.from_ms, s.from_ms)))::bigint AS gpu_ms
FROM generate_series($2::bigint, $2::bigint + $3::bigint * ($4::bigint - 1), $3::bigint) AS s (from_ms)
-- No posting is longer than a bucket, so one that began earlier cannot reach into the step.
JOIN posting p ON p.cluster = $1 AND p.from_ms > s.from_ms - $5::bigint AND p.from_ms < s.from_ms + $3 AND p.to_ms > s.from_ms
GROUP BY 1, 2

-- name: lives
SELECT a.attempt, a.budget, a.gpus, a.replicas, a.granted_at_ms, coalesce(a.started_at_ms, a.protected_from_ms) AS started_at_ms,
    a.ended_at_ms
FROM attempt a WHERE a.cluster = $1 AND a.granted_at_ms < $3 AND (a.ended_at_ms IS NULL OR a.ended_at_ms > $2)

-- name: counted_of_attempts
SELECT attempt, replica, from_ms, to_ms, posted_until_ms FROM counter
WHERE attempt = ANY($2::text[]) AND cluster = $1 AND from_ms IS NOT NULL AND to_ms > from_ms ORDER BY attempt, replica, epoch

-- name: state
SELECT (SELECT count(*) FROM posting WHERE cluster = $1) AS postings,
    (SELECT coalesce(sum(amount_gpu_ms), 0)::bigint FROM posting WHERE cluster = $1) AS posted_gpu_ms,
    (SELECT count(*) FROM attempt WHERE cluster = $1 AND ended_at_ms IS NULL AND granted_at_ms IS NOT NULL) AS open_attempts,
    (SELECT count(*) FROM attempt a JOIN counter c USING (attempt, cluster) WHERE a.cluster = $1 AND a.granted_at_ms IS NULL) AS unattributed,
    (SELECT count(*) FROM fault WHERE cluster = $1 AND released_at_ms IS NULL) AS faults

-- name: last_signs
-- When each replica of a started attempt was last heard of: the start, or how far its counters have come.
SELECT min(seen_ms) FROM (
    SELECT greatest(coalesce(a.started_at_ms, a.protected_from_ms), max(c.to_ms)) AS seen_ms
    FROM attempt a CROSS JOIN generate_series(0, a.replicas - 1) AS r (replica)
    LEFT JOIN counter c ON c.attempt = a.attempt AND c.cluster = a.cluster AND c.replica = r.replica
    WHERE a.cluster = $1 AND a.ended_at_ms IS NULL AND a.granted_at_ms IS NOT NULL
    GROUP BY a.attempt, a.cluster, r.replica
) AS replicas

-- name: faults_page
SELECT what, code, sentence, excess_gpu_ms, most_excess_gpu_ms, times, first_at_ms, last_at_ms, last_event
FROM fault WHERE cluster = $1 AND released_at_ms IS NULL AND (what, code) > ($2, $3) ORDER BY what, code LIMIT $4
