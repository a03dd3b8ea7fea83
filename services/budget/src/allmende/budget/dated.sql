-- name: add_dated
INSERT INTO dated (change, parent, from_ms, until_ms, planned) VALUES ($1, $2, $3, $4, $5)

-- name: add_dated_step
INSERT INTO dated_step (dated, step, until_ms, base, said) SELECT number, $2, $3, $4, $5 FROM dated WHERE change = $1

-- name: open_dated
SELECT number, planned, until_ms, base, renewal FROM dated_now WHERE is_open ORDER BY number

-- name: dated_before
-- NULL does not restrict. An id is named by its last letters.
SELECT number, planned, until_ms, renewal,
    ARRAY(SELECT said FROM dated_step WHERE dated = dated_now.number ORDER BY dated_step.number) AS steps
FROM dated_now
WHERE ($1::bigint IS NULL OR number < $1)
    AND ($2::text IS NULL OR right(change, length($2)) = $2)
    AND ($3::text IS NULL OR parent = $3)
    AND (NOT $4 OR is_open)
ORDER BY number DESC
LIMIT $5
