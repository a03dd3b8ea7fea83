-- What the chassis keeps in each service's own schema. Times here are real, never the lab's clock.

-- The messages that were handled: the one guard against handling any twice. The publisher's name is part of the key, so that nobody
-- can swallow another's message by saying one with its id first.
CREATE TABLE inbox (
    publisher text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (publisher, id)
);
-- Rows arrive in this order, so a few bytes per megabyte find the old ones.
CREATE INDEX inbox_received_at ON inbox USING brin (received_at);

-- Messages that were decided and wait to be said, in the order of `seq`.
CREATE TABLE outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    subject text NOT NULL,
    type text NOT NULL,
    version int NOT NULL,
    occurred_at_ms bigint NOT NULL,
    cause text,
    trace text,
    body text NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Set when the server will never take it: an operator looks, and the next start tries once more.
    problem text
);

-- Messages that could not be believed or handled, byte for byte.
CREATE TABLE quarantine (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream text NOT NULL,
    stream_seq bigint NOT NULL,
    subject text NOT NULL,
    message text,
    code text NOT NULL,
    sentence text NOT NULL,
    data bytea NOT NULL,
    -- A stream that was made anew counts from 1 again, so its numbers alone do not name a message.
    digest bytea NOT NULL,
    quarantined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (stream, stream_seq, digest)
);

-- Who is the single writer. Safety is the fence; the lease only says when to try.
CREATE TABLE term (
    name text PRIMARY KEY,
    fence bigint NOT NULL,
    holder text NOT NULL,
    expires_at timestamptz NOT NULL
);
