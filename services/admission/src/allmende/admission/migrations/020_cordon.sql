-- The newest word about each node's cordon. A table of its own: it may be heard before the node has reported.
CREATE TABLE cordon (
    cluster text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (cluster, node)
);
