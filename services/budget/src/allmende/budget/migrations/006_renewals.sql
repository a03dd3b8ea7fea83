-- The dated change that a proposal asks to extend: while it is open, the change stays in force beyond its end.
ALTER TABLE proposal ADD COLUMN renews text COLLATE "C";
CREATE INDEX proposal_renews ON proposal (renews) WHERE renews IS NOT NULL;
