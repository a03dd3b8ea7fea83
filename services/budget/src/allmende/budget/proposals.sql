-- name: add_proposal
INSERT INTO proposal (proposal, budget, author, proposed, renews) VALUES ($1, $2, $3, $4, $5)

-- name: end_proposal
INSERT INTO proposal_end (number, ending, decided) SELECT number, $2, $3 FROM proposal WHERE proposal = $1

-- name: one_proposal
SELECT number, proposed, decided FROM proposal LEFT JOIN proposal_end USING (number) WHERE proposal = $1

-- name: open_proposals_for
SELECT number, proposed, decided
FROM proposal LEFT JOIN proposal_end USING (number)
WHERE budget = ANY($1::text[]) AND ending IS NULL
ORDER BY number

-- name: budgets_with_open_proposals
SELECT DISTINCT budget FROM proposal LEFT JOIN proposal_end USING (number) WHERE ending IS NULL ORDER BY budget

-- name: proposals_before
-- NULL does not restrict. An id is named by its last letters; of a state, `open` is that there is no answer.
SELECT number, proposed, decided
FROM proposal LEFT JOIN proposal_end USING (number)
WHERE ($1::bigint IS NULL OR number < $1)
    AND ($2::text IS NULL OR right(proposal, length($2)) = $2)
    AND ($3::text[] IS NULL OR budget = ANY($3))
    AND ($4::text IS NULL OR author = $4)
    AND ($5::text IS NULL OR coalesce(ending, 'open') = $5)
ORDER BY number DESC
LIMIT $6
