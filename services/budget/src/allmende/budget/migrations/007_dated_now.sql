-- Dated changes as they stand. `is_open`: planned, or an overlay that runs; `renewal`: the proposal to extend it that waits for an answer.
CREATE VIEW dated_now AS
SELECT number, change, parent, planned,
    coalesce(
        (SELECT until_ms FROM dated_step WHERE dated = dated.number AND step = 'extended' ORDER BY dated_step.number DESC LIMIT 1),
        until_ms
    ) AS until_ms,
    (SELECT base FROM dated_step WHERE dated = dated.number AND step = 'begun') AS base,
    (
        SELECT proposal FROM proposal LEFT JOIN proposal_end USING (number)
        WHERE renews = change AND ending IS NULL ORDER BY proposal.number LIMIT 1
    ) AS renewal,
    NOT EXISTS (
        SELECT FROM dated_step
        WHERE dated = dated.number AND (step IN ('ended', 'withdrawn') OR (step = 'begun' AND dated.until_ms IS NULL))
    ) AS is_open
FROM dated;
