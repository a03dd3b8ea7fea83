"""Streams and consumers, derived from the subject table. One topology command makes them; services only bind.

Data only: `chassis.topology` talks to the server.
"""

from msgspec import Struct

from allmende.proto.envelope import MAX_MESSAGE_BYTES
from allmende.proto.ids import is_name
from allmende.proto.subjects import SERVICES, SUBJECTS, Role, StreamName, Subject
from allmende.proto.units import DAY_MS, MINUTE_MS, SECOND_MS, Ms


class Stream(Struct, frozen=True, kw_only=True):
    """One JetStream stream: limits retention, file storage, `discard: new`, no roll-up headers, no message TTL.

    `last_value_only` keeps one message a subject: for state that is said again in full.
    """

    name: StreamName
    max_age_ms: Ms | None
    """None: for ever."""
    max_bytes: int
    last_value_only: bool = False
    purpose: str

    @property
    def subjects(self) -> tuple[str, ...]:
        """The patterns of all rows that live in the stream."""
        return tuple(row.pattern for row in SUBJECTS if row.stream == self.name)


GIB = 1024**3
MAX_MESSAGE_SIZE = MAX_MESSAGE_BYTES
# Deduplication by Nats-Msg-Id is an optimisation only (rule 4 of bus-and-store); correctness is the inbox row.
DUPLICATE_WINDOW_MS: Ms = 2 * MINUTE_MS

STREAMS: tuple[Stream, ...] = (
    Stream(name="JOBS", max_age_ms=30 * DAY_MS, max_bytes=4 * GIB, purpose="what people submit, payloads included"),
    Stream(name="USAGE", max_age_ms=30 * DAY_MS, max_bytes=16 * GIB, purpose="what agents report: the books rest on it"),
    Stream(name="TREE", max_age_ms=None, max_bytes=2 * GIB, purpose="every revision of the tree of shares"),
    Stream(
        name="STANDINGS",
        max_age_ms=None,
        max_bytes=1 * GIB,
        last_value_only=True,
        purpose="what sorts the queue, and use",
    ),
    Stream(name="DECISIONS", max_age_ms=30 * DAY_MS, max_bytes=8 * GIB, purpose="grants, claims, evictions, ends, notices"),
    Stream(name="REFUSALS", max_age_ms=7 * DAY_MS, max_bytes=1 * GIB, purpose="messages that were refused, and why"),
)


class Consumer(Struct, frozen=True, kw_only=True):
    """A durable pull consumer with explicit acks, unlimited deliveries and a bounded number of unacknowledged messages."""

    stream: StreamName
    durable: str
    filters: tuple[str, ...]


# More than the largest batch that a service pulls, so that the next batch is on its way while one is committed.
MAX_ACK_PENDING = 4_096
# What a killed replica had in hand comes to another one after this time. A transaction that takes longer gets its messages twice,
# which the inbox bears.
ACK_WAIT_MS: Ms = 20 * SECOND_MS


def heard_by(role: Role) -> tuple[Subject, ...]:
    """The rows that a role hears."""
    return tuple(row for row in SUBJECTS if role in row.hears)


def consumers_of(service: Role) -> tuple[Consumer, ...]:
    """The consumers of a service: one for each stream that it hears anything of."""
    rows = heard_by(service)
    streams = dict.fromkeys(row.stream for row in rows)
    return tuple(
        Consumer(stream=stream, durable=service, filters=tuple(row.pattern for row in rows if row.stream == stream))
        for stream in streams
    )


def consumer_of_agent(cluster: str) -> Consumer:
    """The consumer through which the agent of a cluster hears its own orders, and only those.

    Raises:
        ValueError: the cluster is not a name.
    """
    if not is_name(cluster):
        raise ValueError(f"{cluster!r} is not a cluster's name")
    rows = [row for row in heard_by("agent") if row.stream == "DECISIONS"]
    filters = tuple(".".join((row.prefix, cluster, *("*" for _ in row.tokens[1:]))) for row in rows)
    return Consumer(stream="DECISIONS", durable=f"agent-{cluster}", filters=filters)


def all_consumers(clusters: tuple[str, ...]) -> tuple[Consumer, ...]:
    """Every consumer of a deployment with these clusters."""
    services = tuple(consumer for service in SERVICES for consumer in consumers_of(service))
    return services + tuple(consumer_of_agent(cluster) for cluster in clusters)
