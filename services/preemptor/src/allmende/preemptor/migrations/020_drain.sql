-- Nodes out of use. Instants are milliseconds of the lab's clock.

-- What a node's agent wants, as of its newest report.
ALTER TABLE node ADD COLUMN cordon text;

-- Who wants a node cordoned, each for himself: an operator's word, and what the agent's reports say.
CREATE TABLE cordon (
    cluster text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    source text NOT NULL CHECK (source IN ('operator', 'agent')),
    -- JSON of the terms.
    terms text NOT NULL,
    PRIMARY KEY (cluster, node, source)
);

-- What was last said of a node; its terms are null once it has returned. `closed_*`: admission's word that it grants nothing there.
CREATE TABLE drain (
    cluster text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    said text NOT NULL DEFAULT 'returned' CHECK (said IN ('cordoned', 'drained', 'returned')),
    terms text,
    terms_revision bigint NOT NULL DEFAULT 0,
    revision bigint NOT NULL DEFAULT 0,
    closed_revision bigint,
    closed_grant_seq bigint,
    PRIMARY KEY (cluster, node)
);
CREATE INDEX drain_open ON drain (cluster) WHERE terms IS NOT NULL;

-- The plan of a drain answers no claim.
ALTER TABLE plan ALTER COLUMN claim DROP NOT NULL;
