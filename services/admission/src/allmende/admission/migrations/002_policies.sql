-- What operators decided for each cluster. Only ever added to: a row holds from its instant until that of the next revision.
CREATE TABLE policy (
    cluster text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    from_ms bigint NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (cluster, revision)
);
