-- name: add_dated
INSERT INTO dated (change, parent, from_ms, until_ms, planned) VALUES ($1, $2, $3, $4, $5)

-- name: add_dated_step
INSERT INTO dated_step (dated, step, until_ms, base, said) SELECT number, $2, $3, $4, $5 FROM dated WHERE change = $1

-- name: open_dated
-- Planned, or an overlay that runs. `renewal`: the proposal to extend it that waits for an answer.
SELECT number, planned, coalesce(
    (SELECT until_ms FROM dated_step WHERE dated = dated.number AND step = 'extended' ORDER BY dated_step.number DESC LIMIT 1),
    until_ms
) AS until_ms,
(SELECT base FROM dated_step WHERE dated = dated.number AND step = 'begun') AS base,
(
    SELECT proposal FROM proposal LEFT JOIN proposal_end USING (number)
    WHERE renews = change AND ending IS NULL ORDER BY proposal.number LIMIT 1
) AS renewal
FROM dated
WHERE NOT EXISTS (
    SELECT FROM dated_step
    WHERE dated = dated.number AND (step IN ('ended', 'withdrawn') OR (step = 'begun' AND dated.until_ms IS NULL))
)
ORDER BY number

-- name: dated_before
-- NULL does not restrict. An id is named by its last letters.
SELECT number, planned, ARRAY(SELECT said FROM dated_step WHERE dated = dated.number ORDER BY dated_step.number) AS steps,
(
    SELECT proposal FROM proposal LEFT JOIN proposal_end USING (number)
    WHERE renews = change AND ending IS NULL ORDER BY proposal.number LIMIT 1
) AS renewal
FROM dated
WHERE ($1::bigint IS NULL OR number < $1)
    AND ($2::text IS NULL OR right(change, length($2)) = $2)
    AND ($3::text IS NULL OR parent = $3)
    AND (NOT $4 OR NOT EXISTS (
        SELECT FROM dated_step
        WHERE dated = dated.number AND (step IN ('ended', 'withdrawn') OR (step = 'begun' AND dated.until_ms IS NULL))
    ))
ORDER BY number DESC
LIMIT $5
