-- Shares of single clusters beside the general ones, which have no cluster and hold wherever a cluster has none of its own.
ALTER TABLE share ADD COLUMN cluster text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE share DROP CONSTRAINT share_pkey, ADD PRIMARY KEY (budget, cluster, from_ms);
DROP INDEX share_open;
CREATE UNIQUE INDEX share_open ON share (budget, cluster) WHERE until_ms IS NULL;
