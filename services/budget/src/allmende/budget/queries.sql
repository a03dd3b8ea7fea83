-- name: newest_revision
SELECT number, effective_from_ms, author, reason, budgets, digest FROM revision ORDER BY number DESC LIMIT 1

-- name: one_revision
SELECT number, effective_from_ms, author, reason, budgets, digest FROM revision WHERE number = $1

-- name: revision_at
SELECT number, effective_from_ms, author, reason, budgets, digest FROM revision WHERE effective_from_ms <= $1 ORDER BY number DESC LIMIT 1

-- name: revisions_before
SELECT number, effective_from_ms, author, reason, budgets, digest,
    (SELECT count(*) FROM definition WHERE from_revision = number) AS changed,
    (SELECT max(jobs_to) FROM definition WHERE from_revision = number) AS jobs_to
FROM revision
WHERE ($1::bigint IS NULL OR number < $1)
    AND ($2::text IS NULL OR EXISTS (SELECT FROM definition WHERE budget = $2 AND from_revision = number))
ORDER BY number DESC
LIMIT $3

-- name: revision_of_upload
SELECT number, effective_from_ms, author, reason, budgets, digest FROM revision WHERE upload = $1

-- name: page_as_of
-- The row in force of each budget is its newest up to the revision asked for. From name to name and no further than the page reaches,
-- so that a long history costs nothing; the recursion yields the names in their order, and the join keeps it.
WITH RECURSIVE named (budget) AS (
    (SELECT budget FROM definition WHERE budget > $2 ORDER BY budget LIMIT 1)
    UNION ALL
    SELECT (SELECT budget FROM definition WHERE budget > named.budget ORDER BY budget LIMIT 1)
    FROM named
    WHERE named.budget IS NOT NULL
)
SELECT in_force.definition
FROM named
CROSS JOIN LATERAL (
    SELECT definition FROM definition
    WHERE budget = named.budget AND from_revision <= $1
    ORDER BY from_revision DESC LIMIT 1
) AS in_force
WHERE in_force.definition IS NOT NULL
LIMIT $3

-- name: changed_page_as_of
-- The same of the budgets only that were written in a revision between $1 and $4.
SELECT in_force.definition
FROM (SELECT DISTINCT budget FROM definition WHERE from_revision > least($1::bigint, $4::bigint) AND from_revision <= greatest($1::bigint, $4::bigint)) AS changed
CROSS JOIN LATERAL (
    SELECT definition FROM definition
    WHERE budget = changed.budget AND from_revision <= $1
    ORDER BY from_revision DESC LIMIT 1
) AS in_force
WHERE changed.budget > $2 AND in_force.definition IS NOT NULL
ORDER BY changed.budget
LIMIT $3

-- name: changed_between
-- Budgets written after revision $1 and up to $2, as they stood in each; `total` counts those behind the limit too.
SELECT changed.budget, older.definition AS before, newer.definition AS after, count(*) OVER () AS total
FROM (SELECT DISTINCT budget FROM definition WHERE from_revision > $1 AND from_revision <= $2) AS changed
LEFT JOIN LATERAL (
    SELECT definition FROM definition
    WHERE budget = changed.budget AND from_revision <= $1
    ORDER BY from_revision DESC LIMIT 1
) AS older ON true
LEFT JOIN LATERAL (
    SELECT definition FROM definition
    WHERE budget = changed.budget AND from_revision <= $2
    ORDER BY from_revision DESC LIMIT 1
) AS newer ON true
WHERE older.definition IS DISTINCT FROM newer.definition
ORDER BY changed.budget
LIMIT $3

-- name: names_used
SELECT DISTINCT budget FROM definition WHERE budget = ANY($1::text[])

-- name: add_revision
INSERT INTO revision (number, effective_from_ms, author, reason, budgets, digest, upload) VALUES ($1, $2, $3, $4, $5, $6, $7)

-- name: add_definitions
INSERT INTO definition (budget, from_revision, definition, jobs_to)
SELECT budget, $1, definition, jobs_to
FROM unnest($2::text[], $3::text[], $4::text[]) AS changed (budget, definition, jobs_to)

-- name: stage_piece
INSERT INTO upload_piece (upload, author, piece, last, content) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING

-- name: staged_pieces
SELECT piece, last, content FROM upload_piece WHERE upload = $1 AND author = $2 ORDER BY piece

-- name: forget_old_uploads
DELETE FROM upload_piece WHERE received_at < clock_timestamp() - make_interval(hours => $1)
