-- What changed between two revisions is asked by people and by writers who came second; without this every budget would be looked at.
CREATE INDEX definition_by_revision ON definition (from_revision, budget);
