-- Who submitted an attempt and on which nodes its replicas are: written once, with the first word on its grant. An attempt that was
-- granted before this table has no row: its user and GPU model are not known.
CREATE TABLE placed (
    attempt text COLLATE "C" NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    first_replica int NOT NULL CHECK (first_replica >= 0),
    replicas int NOT NULL CHECK (replicas > 0),
    node text COLLATE "C" NOT NULL,
    submitter text COLLATE "C" NOT NULL,
    PRIMARY KEY (attempt, cluster, first_replica),
    FOREIGN KEY (attempt, cluster) REFERENCES attempt
);
-- NULL: the report named none, or came before this column.
ALTER TABLE node_step ADD COLUMN gpu_model text COLLATE "C";
