-- name: newest_revision
SELECT number, effective_from_ms, author, reason, budgets, digest FROM revision ORDER BY number DESC LIMIT 1

-- name: one_revision
SELECT number, effective_from_ms, author, reason, budgets, digest FROM revision WHERE number = $1

-- name: revision_of_upload
SELECT number, effective_from_ms, author, reason, budgets, digest FROM revision WHERE upload = $1

-- name: page_as_of
-- The row in force of each budget is its newest up to the revision asked for.
SELECT definition
FROM (
    SELECT DISTINCT ON (budget) budget, definition
    FROM definition
    WHERE from_revision <= $1 AND budget > $2
    ORDER BY budget, from_revision DESC
) AS in_force
WHERE definition IS NOT NULL
ORDER BY budget
LIMIT $3

-- name: names_used
SELECT DISTINCT budget FROM definition WHERE budget = ANY($1::text[])

-- name: add_revision
INSERT INTO revision (number, effective_from_ms, author, reason, budgets, digest, upload) VALUES ($1, $2, $3, $4, $5, $6, $7)

-- name: add_definitions
INSERT INTO definition (budget, from_revision, definition)
SELECT budget, $1, definition FROM unnest($2::text[], $3::text[]) AS changed (budget, definition)

-- name: stage_piece
INSERT INTO upload_piece (upload, author, piece, last, content) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING

-- name: staged_pieces
SELECT piece, last, content FROM upload_piece WHERE upload = $1 AND author = $2 ORDER BY piece

-- name: forget_old_uploads
DELETE FROM upload_piece WHERE received_at < clock_timestamp() - make_interval(hours => $1)
