-- Proposals and their answers, each as it was said. Append-only: whether one is open is whether it has an answer.

CREATE TABLE proposal (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    proposal text COLLATE "C" NOT NULL UNIQUE,
    budget text COLLATE "C" NOT NULL,
    author text COLLATE "C" NOT NULL,
    -- Text, not jsonb, which knows no \u0000.
    proposed text NOT NULL
);
CREATE INDEX proposal_of_budget ON proposal (budget, number);
CREATE INDEX proposal_of_author ON proposal (author, number);

-- One answer each, whoever comes first.
CREATE TABLE proposal_end (
    number bigint PRIMARY KEY REFERENCES proposal (number),
    ending text NOT NULL CHECK (ending IN ('accepted', 'declined', 'withdrawn', 'closed')),
    decided text NOT NULL
);

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON proposal
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_rewrite_history();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON proposal_end
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_rewrite_history();
