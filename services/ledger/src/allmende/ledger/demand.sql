-- The ledger's queries for demand.

-- name: demands
SELECT job, budget, submitted_at_ms, clusters, gpus, gpu_model, slice_ms, asked_said_at_ms, asked_said, known_from_ms,
    ended_at_ms, outcome, first_started_at_ms, ended_said_at_ms, ended_said
FROM demand WHERE job = ANY($1::text[])

-- name: save_demand
INSERT INTO demand (job, budget, submitted_at_ms, clusters, gpus, gpu_model, slice_ms, asked_said_at_ms, asked_said, known_from_ms,
    ended_at_ms, outcome, first_started_at_ms, ended_said_at_ms, ended_said)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT (job) DO UPDATE SET budget = excluded.budget, submitted_at_ms = excluded.submitted_at_ms, clusters = excluded.clusters,
    gpus = excluded.gpus, gpu_model = excluded.gpu_model, slice_ms = excluded.slice_ms, asked_said_at_ms = excluded.asked_said_at_ms,
    asked_said = excluded.asked_said, known_from_ms = excluded.known_from_ms, ended_at_ms = excluded.ended_at_ms,
    outcome = excluded.outcome, first_started_at_ms = excluded.first_started_at_ms, ended_said_at_ms = excluded.ended_said_at_ms,
    ended_said = excluded.ended_said

-- name: demand_known_from
SELECT min(known_from_ms) FROM demand
