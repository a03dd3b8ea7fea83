-- Whether a cluster's policy lets anybody be evicted unless an operator says so by name (mode `enforce`), and of which revision.
ALTER TABLE cluster ADD COLUMN evicts boolean NOT NULL DEFAULT true;
ALTER TABLE cluster ADD COLUMN policy_revision bigint NOT NULL DEFAULT 0;
