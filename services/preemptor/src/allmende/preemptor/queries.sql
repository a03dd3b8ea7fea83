-- name: clusters_with_waiting_claims
SELECT DISTINCT cluster FROM claim WHERE state = 'waiting';

-- name: add_clusters
INSERT INTO cluster (cluster, fence) SELECT * FROM unnest($1::text[], $2::bigint[])
ON CONFLICT (cluster) DO UPDATE SET fence = excluded.fence WHERE cluster.fence < excluded.fence;

-- name: set_modes
UPDATE cluster SET evicts = come.evicts, policy_revision = come.revision
FROM unnest($1::text[], $2::boolean[], $3::bigint[]) AS come (cluster, evicts, revision)
WHERE cluster.cluster = come.cluster AND cluster.policy_revision < come.revision;

-- name: evicts
SELECT evicts FROM cluster WHERE cluster = $1;

-- name: add_grants
INSERT INTO attempt (cluster, attempt, job, budget, replicas, gpus_per_replica, priority, hold_gpu_ms, grant_seq)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[], $6::int[], $7::int[], $8::bigint[], $9::bigint[])
ON CONFLICT (cluster, attempt) DO UPDATE SET job = excluded.job, budget = excluded.budget, replicas = excluded.replicas,
    gpus_per_replica = excluded.gpus_per_replica, priority = excluded.priority, hold_gpu_ms = excluded.hold_gpu_ms,
    grant_seq = excluded.grant_seq
WHERE attempt.grant_seq IS NULL;

-- name: add_held
-- Not for an attempt whose end was heard before its grant.
INSERT INTO held (cluster, attempt, node, gpus)
SELECT come.* FROM unnest($1::text[], $2::text[], $3::text[], $4::int[]) AS come (cluster, attempt, node, gpus)
JOIN attempt USING (cluster, attempt)
WHERE attempt.ended_at_ms IS NULL
ON CONFLICT DO NOTHING;

-- name: advance_grants
-- Grants without a gap: as long as grant_seq minus the row's number stays what was heard before.
UPDATE cluster SET grants_heard = heard.newest
FROM (
    SELECT cluster, max(grant_seq) AS newest
    FROM (
        SELECT cluster, grant_seq, grants_heard,
            grant_seq - row_number() OVER (PARTITION BY cluster ORDER BY grant_seq) AS before
        FROM attempt JOIN cluster USING (cluster)
        WHERE cluster = ANY($1::text[]) AND grant_seq > grants_heard
    ) AS numbered
    WHERE before = grants_heard
    GROUP BY cluster
) AS heard
WHERE cluster.cluster = heard.cluster;

-- name: protect
-- Sets the timer with the first word about an attempt, and never again, however often the word comes.
WITH come AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
        AS come (cluster, attempt, job, budget, started_at_ms, protected_until_ms)
), written AS (
    INSERT INTO attempt (cluster, attempt, started_at_ms, protected_until_ms)
    SELECT cluster, attempt, started_at_ms, protected_until_ms FROM come
    ON CONFLICT (cluster, attempt) DO UPDATE
    SET started_at_ms = excluded.started_at_ms, protected_until_ms = excluded.protected_until_ms
    WHERE attempt.protected_until_ms IS NULL
    RETURNING cluster, attempt, ended_at_ms
)
INSERT INTO timer (cluster, attempt, job, budget, due_at_ms)
SELECT cluster, attempt, job, budget, protected_until_ms FROM come JOIN written USING (cluster, attempt)
WHERE ended_at_ms IS NULL
ON CONFLICT DO NOTHING;

-- name: free_gpus
UPDATE held SET freed = come.freed
FROM unnest($1::text[], $2::text[], $3::text[], $4::int[]) AS come (cluster, attempt, node, freed)
WHERE held.cluster = come.cluster AND held.attempt = come.attempt AND held.node = come.node AND held.freed < come.freed;

-- name: end_attempts
INSERT INTO attempt (cluster, attempt, ended_at_ms) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
ON CONFLICT (cluster, attempt) DO UPDATE SET ended_at_ms = excluded.ended_at_ms WHERE attempt.ended_at_ms IS NULL;

-- name: lose_attempts
-- Declared lost: nobody's victim, and room to come for nobody, until the agent says that nothing of it runs.
WITH come AS (
    SELECT * FROM unnest($1::text[], $2::text[]) AS come (cluster, attempt)
), no_timer AS (
    DELETE FROM timer USING come WHERE timer.cluster = come.cluster AND timer.attempt = come.attempt
), no_departure AS (
    DELETE FROM departure USING come WHERE departure.cluster = come.cluster AND departure.attempt = come.attempt
)
INSERT INTO attempt (cluster, attempt, leaving_plan, overdue) SELECT cluster, attempt, 'declared lost', true FROM come
ON CONFLICT (cluster, attempt) DO UPDATE SET leaving_plan = coalesce(attempt.leaving_plan, excluded.leaving_plan), overdue = true
WHERE attempt.ended_at_ms IS NULL;

-- name: forget_ended
WITH gone AS (
    SELECT * FROM unnest($1::text[], $2::text[]) AS gone (cluster, attempt)
), no_held AS (
    DELETE FROM held USING gone WHERE held.cluster = gone.cluster AND held.attempt = gone.attempt
), no_checkpoint AS (
    DELETE FROM checkpoint USING gone WHERE checkpoint.cluster = gone.cluster AND checkpoint.attempt = gone.attempt
), no_departure AS (
    DELETE FROM departure USING gone WHERE departure.cluster = gone.cluster AND departure.attempt = gone.attempt
)
DELETE FROM timer USING gone WHERE timer.cluster = gone.cluster AND timer.attempt = gone.attempt;

-- name: prune_attempts
-- A few at a time: as many as end in a batch, so that the table does not grow.
DELETE FROM attempt WHERE (cluster, attempt) IN (
    SELECT cluster, attempt FROM attempt JOIN cluster USING (cluster)
    WHERE ended_at_ms < $1 AND (grant_seq IS NULL OR grant_seq <= grants_heard) LIMIT 512
);

-- name: prune_claims
WITH old AS (
    DELETE FROM claim_end WHERE (cluster, claim) IN (SELECT cluster, claim FROM claim_end WHERE ended_at_ms < $1 LIMIT 512)
    RETURNING cluster, claim
)
DELETE FROM claim USING old WHERE claim.cluster = old.cluster AND claim.claim = old.claim;

-- name: report_nodes
INSERT INTO node (cluster, node, at_ms, seq, healthy_gpus, gpu_model, cordon, heard_at)
SELECT cluster, node, at_ms, seq, healthy_gpus, gpu_model, cordon, clock_timestamp() - age_ms * interval '1 millisecond'
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::int[], $6::text[], $7::text[], $8::bigint[])
    AS come (cluster, node, at_ms, seq, healthy_gpus, gpu_model, cordon, age_ms)
ON CONFLICT (cluster, node) DO UPDATE SET at_ms = excluded.at_ms, seq = excluded.seq, healthy_gpus = excluded.healthy_gpus,
    gpu_model = excluded.gpu_model, cordon = excluded.cordon, heard_at = greatest(node.heard_at, excluded.heard_at)
WHERE (node.at_ms, node.seq) < (excluded.at_ms, excluded.seq);

-- name: lose_nodes
-- The last report that admission had heard: a later one brings the node back, whichever comes first.
INSERT INTO node (cluster, node, at_ms, seq, healthy_gpus, heard_at)
SELECT cluster, node, at_ms, seq, 0, 'epoch' FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
    AS come (cluster, node, at_ms, seq)
ON CONFLICT (cluster, node) DO UPDATE SET at_ms = excluded.at_ms, seq = excluded.seq, healthy_gpus = 0
WHERE (node.at_ms, node.seq) <= (excluded.at_ms, excluded.seq);

-- name: hear_nodes
-- Ticks are many: a sign of life is written only when the last one is a few seconds old.
UPDATE node SET heard_at = clock_timestamp() - age_ms * interval '1 millisecond'
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS come (cluster, node, age_ms)
WHERE node.cluster = come.cluster AND node.node = come.node
    AND node.heard_at < clock_timestamp() - age_ms * interval '1 millisecond' - interval '5 seconds';

-- name: save_checkpoints
-- Only for attempts that are known and live; the next tick says it again for those whose grant is still on its way.
INSERT INTO checkpoint (cluster, attempt, replica, at_ms)
SELECT come.* FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[]) AS come (cluster, attempt, replica, at_ms)
JOIN attempt USING (cluster, attempt)
LEFT JOIN checkpoint AS old USING (cluster, attempt, replica)
WHERE attempt.ended_at_ms IS NULL AND attempt.grant_seq IS NOT NULL AND (old.at_ms IS NULL OR old.at_ms < come.at_ms)
ON CONFLICT (cluster, attempt, replica) DO UPDATE SET at_ms = excluded.at_ms WHERE checkpoint.at_ms < excluded.at_ms;

-- name: set_standings
INSERT INTO standing (cluster, budget, used_gpu_ms, entitlement_gpu_ms, usage_revision, counted_grants)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
ON CONFLICT (cluster, budget) DO UPDATE SET used_gpu_ms = excluded.used_gpu_ms, entitlement_gpu_ms = excluded.entitlement_gpu_ms,
    usage_revision = excluded.usage_revision, counted_grants = excluded.counted_grants
WHERE standing.usage_revision < excluded.usage_revision;

-- name: add_budget_changes
INSERT INTO budget_change (budget, revision, definition) SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[])
ON CONFLICT DO NOTHING;

-- name: add_revisions
INSERT INTO tree_revision (revision, budgets, digest)
SELECT come.* FROM unnest($1::bigint[], $2::int[], $3::text[]) AS come (revision, budgets, digest)
WHERE NOT EXISTS (SELECT FROM tree_revision WHERE in_force AND tree_revision.revision >= come.revision)
ON CONFLICT DO NOTHING;

-- name: announced_revisions
SELECT revision, budgets, digest FROM tree_revision WHERE NOT in_force ORDER BY revision DESC;

-- name: tree_in_force
SELECT revision, digest FROM tree_revision WHERE in_force;

-- name: definitions
SELECT definition FROM (
    SELECT DISTINCT ON (budget) budget, definition FROM budget_change WHERE revision <= $1 ORDER BY budget, revision DESC
) AS newest WHERE definition IS NOT NULL ORDER BY budget;

-- name: drop_older_revisions
DELETE FROM tree_revision WHERE revision < $1;

-- name: put_in_force
UPDATE tree_revision SET in_force = true WHERE revision = $1;

-- name: drop_replaced_definitions
DELETE FROM budget_change AS old USING budget_change AS newer
WHERE old.budget = newer.budget AND old.revision < newer.revision AND newer.revision <= $1;

-- name: add_claims
INSERT INTO claim (cluster, claim, job, budget, replicas, gpus_per_replica, gpu_model, slice_ms, hold_gpu_ms, priority,
    newest_grant_seq, fence, tree_revision, usage_revision, avoid_nodes, reserved_nodes, stream_seq, message, state)
SELECT come.*, 'waiting'
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[], $6::int[], $7::text[], $8::bigint[], $9::bigint[], $10::int[],
    $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::text[], $16::text[], $17::bigint[], $18::text[])
    AS come (cluster, claim)
WHERE NOT EXISTS (SELECT FROM claim_end WHERE claim_end.cluster = come.cluster AND claim_end.claim = come.claim)
ON CONFLICT DO NOTHING;

-- name: end_claims
WITH come AS (
    SELECT DISTINCT * FROM unnest($1::text[], $2::text[]) AS come (cluster, claim)
), remembered AS (
    INSERT INTO claim_end (cluster, claim, ended_at_ms) SELECT cluster, claim, $3 FROM come ON CONFLICT DO NOTHING
), closed AS (
    UPDATE claim SET state = 'closed' FROM come
    WHERE claim.cluster = come.cluster AND claim.claim = come.claim AND claim.state IN ('waiting', 'planned')
)
DELETE FROM promise USING come WHERE promise.cluster = come.cluster AND promise.claim = come.claim;

-- name: waiting_claims
SELECT cluster, claim, job, budget, replicas, gpus_per_replica, gpu_model, slice_ms, hold_gpu_ms, priority, newest_grant_seq, fence,
    tree_revision, usage_revision, avoid_nodes, reserved_nodes, message
FROM claim WHERE cluster = $1 AND state = 'waiting' ORDER BY stream_seq, claim;

-- name: progress
SELECT
    coalesce((SELECT grants_heard FROM cluster WHERE cluster = $1), 0) AS grants_heard,
    coalesce((SELECT fence FROM cluster WHERE cluster = $1), 0) AS fence,
    (SELECT max(usage_revision) FROM standing WHERE cluster = $1) AS usage_revision,
    (SELECT count(*) FROM node WHERE cluster = $1)::int AS nodes;

-- name: nodes
-- `cordoned`: what was said of it last, whether that has begun or not. Nothing is planned on a node that is about to be taken away.
SELECT node, healthy_gpus, gpu_model, heard_at > clock_timestamp() - $2::bigint * interval '1 millisecond' AS heard,
    drain.terms IS NOT NULL AS cordoned
FROM node LEFT JOIN drain USING (cluster, node) WHERE cluster = $1 ORDER BY node;

-- name: attempts
-- Three queries and a join in memory: without fresh statistics a join of the three took half a second for 1,000 attempts.
SELECT attempt, job, budget, replicas, gpus_per_replica, priority, started_at_ms, protected_until_ms, leaving_plan, overdue,
    grant_seq, hold_gpu_ms
FROM attempt WHERE cluster = $1 AND grant_seq IS NOT NULL AND ended_at_ms IS NULL ORDER BY attempt;

-- name: held
SELECT attempt, array_agg(node ORDER BY node) AS nodes, array_agg(gpus - freed ORDER BY node) AS gpus
FROM held WHERE cluster = $1 AND gpus > freed GROUP BY attempt;

-- name: checkpoints
SELECT attempt, array_agg(at_ms ORDER BY replica) AS saved FROM checkpoint WHERE cluster = $1 GROUP BY attempt;

-- name: promised
SELECT node, sum(gpus)::int AS gpus FROM promise WHERE cluster = $1 GROUP BY node;

-- name: standings
SELECT budget, used_gpu_ms, entitlement_gpu_ms, counted_grants FROM standing WHERE cluster = $1;

-- name: planned_holds
SELECT budget, hold_gpu_ms FROM claim WHERE cluster = $1 AND state = 'planned';

-- name: settle_claim
UPDATE claim SET state = $3 WHERE cluster = $1 AND claim = $2 AND state = 'waiting';

-- name: add_plan
INSERT INTO plan (plan, cluster, claim, made_at_ms, tree_revision, usage_revision, answer, orders)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: add_promises
INSERT INTO promise (cluster, claim, node, gpus) SELECT $1, $2, * FROM unnest($3::text[], $4::int[]);

-- name: send_away
UPDATE attempt SET leaving_plan = $3 WHERE cluster = $1 AND attempt = ANY($2::text[]) AND leaving_plan IS NULL;

-- name: take_due
DELETE FROM timer WHERE (cluster, attempt) IN (
    SELECT cluster, attempt FROM timer WHERE due_at_ms <= $1 ORDER BY due_at_ms, attempt LIMIT $2 FOR UPDATE SKIP LOCKED
) RETURNING cluster, attempt, job, budget, due_at_ms;

-- name: next_due
SELECT least((SELECT min(due_at_ms) FROM timer), (SELECT min(due_at_ms) FROM departure));

-- name: add_departures
INSERT INTO departure (cluster, attempt, job, plan, due_at_ms)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
ON CONFLICT DO NOTHING;

-- name: take_overdue
WITH late AS (
    DELETE FROM departure WHERE (cluster, attempt) IN (
        SELECT cluster, attempt FROM departure WHERE due_at_ms <= $1 ORDER BY due_at_ms, attempt LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING cluster, attempt, job, plan, due_at_ms
)
UPDATE attempt SET overdue = true FROM late
WHERE attempt.cluster = late.cluster AND attempt.attempt = late.attempt AND attempt.ended_at_ms IS NULL
RETURNING late.*;

-- name: still_held
SELECT held.node, gpus - freed AS gpus,
    coalesce(node.heard_at < clock_timestamp() - $3::bigint * interval '1 millisecond', true) AS silent
FROM held LEFT JOIN node USING (cluster, node)
WHERE held.cluster = $1 AND held.attempt = $2 AND gpus > freed ORDER BY held.node;

-- name: clusters_with_cordons
SELECT cluster FROM cordon UNION SELECT cluster FROM drain WHERE terms IS NOT NULL;

-- name: drains
SELECT wanted.node, operator.terms AS operator, agent.terms AS agent, coalesce(said, 'returned') AS said, drain.terms AS terms,
    coalesce(terms_revision, 0) AS terms_revision, coalesce(revision, 0) AS revision, closed_revision, closed_grant_seq
FROM (
    SELECT node FROM cordon WHERE cluster = $1
    UNION SELECT node FROM drain WHERE cluster = $1 AND terms IS NOT NULL
    UNION SELECT unnest($2::text[])
) AS wanted
LEFT JOIN cordon AS operator ON operator.cluster = $1 AND operator.node = wanted.node AND operator.source = 'operator'
LEFT JOIN cordon AS agent ON agent.cluster = $1 AND agent.node = wanted.node AND agent.source = 'agent'
LEFT JOIN drain ON drain.cluster = $1 AND drain.node = wanted.node
WHERE $2::text[] IS NULL OR wanted.node = ANY($2::text[])
ORDER BY wanted.node;

-- name: occupants
SELECT attempt, job, budget, replicas, gpus_per_replica, priority, started_at_ms, protected_until_ms, leaving_plan, overdue
FROM attempt
WHERE cluster = $1 AND grant_seq IS NOT NULL AND ended_at_ms IS NULL
    AND attempt IN (SELECT attempt FROM held WHERE cluster = $1 AND node = ANY($2::text[]) AND gpus > freed)
ORDER BY attempt;

-- name: held_by
SELECT attempt, array_agg(node ORDER BY node) AS nodes, array_agg(gpus - freed ORDER BY node) AS gpus
FROM held WHERE cluster = $1 AND attempt = ANY($2::text[]) AND gpus > freed GROUP BY attempt;

-- name: put_cordon
INSERT INTO cordon (cluster, node, source, terms) VALUES ($1, $2, $3, $4)
ON CONFLICT (cluster, node, source) DO UPDATE SET terms = excluded.terms;

-- name: drop_cordon
DELETE FROM cordon WHERE cluster = $1 AND node = $2 AND source = $3;

-- name: say_of_node
INSERT INTO drain (cluster, node, said, terms, terms_revision, revision)
VALUES ($1, $2, $3, $4, CASE WHEN $3 = 'cordoned' THEN 1 ELSE 0 END, 1)
ON CONFLICT (cluster, node) DO UPDATE SET said = excluded.said, terms = excluded.terms, revision = drain.revision + 1,
    terms_revision = CASE WHEN excluded.said = 'cordoned' THEN drain.revision + 1 ELSE drain.terms_revision END;

-- name: close_nodes
UPDATE drain SET closed_revision = come.revision, closed_grant_seq = come.grant_seq
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS come (cluster, node, revision, grant_seq)
WHERE drain.cluster = come.cluster AND drain.node = come.node
    AND (drain.closed_revision IS NULL OR drain.closed_revision < come.revision);

-- name: unknown_nodes
SELECT name FROM unnest($2::text[]) AS name WHERE NOT EXISTS (SELECT FROM node WHERE cluster = $1 AND node = name) ORDER BY name;

-- name: agents_cordons
-- What the newest reports of these nodes want, beside what is kept; nodes of which neither says anything are left out.
SELECT node.cluster, node.node, node.cordon, node.at_ms, cordon.terms
FROM unnest($1::text[], $2::text[]) AS come (cluster, node) JOIN node USING (cluster, node)
LEFT JOIN cordon ON cordon.cluster = node.cluster AND cordon.node = node.node AND cordon.source = 'agent'
WHERE node.cordon IS NOT NULL OR cordon.terms IS NOT NULL;

-- name: add_drain_plan
INSERT INTO plan (plan, cluster, claim, made_at_ms, tree_revision, usage_revision, answer, orders)
VALUES ($1, $2, NULL, $3, $4, $5, '', $6);
