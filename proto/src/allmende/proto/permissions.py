"""What each NATS user may publish and hear, derived from the tables of subjects, requests and streams, and from nothing else.

A user is a role and an identity: a person's name, a cluster, a service's own word. Whatever is not listed is forbidden by the
server. Never talks to a server: `chassis.accounts` renders these into its configuration.
"""

from typing import Literal, NamedTuple

from allmende.proto.ids import is_name
from allmende.proto.streams import STREAMS, Consumer, consumer_of_agent, consumers_of
from allmende.proto.subjects import REQUESTS, SERVICES, SUBJECTS, Role, Subject

UserRole = Role | Literal["admin"]
"""A role of the tables, or `admin`: the topology command, which alone may change streams and consumers; it may find services."""

# The server tells every user what that user may do: a service compares it at start with what this table says.
USER_INFO = "$SYS.REQ.USER.INFO"


class Permissions(NamedTuple):
    """Allow lists of NATS patterns. An empty list allows nothing (a server would read it as everything)."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    allow_responses: bool
    """May answer a request once, on the inbox that the request named."""


def inbox_prefix(role: UserRole, identity: str) -> str:
    """Where a user's replies arrive, without the final dot. Nobody else may hear below it.

    Raises:
        ValueError: the identity is not a name.
    """
    if not is_name(identity):
        raise ValueError(f"{identity!r} is not a name")
    return f"_INBOX.{role}.{identity}"


def permissions(role: UserRole, identity: str) -> Permissions:
    """The allow lists of one user.

    People (`user`, `operator`), agents and the dashboard publish and ask only below their own name or cluster; a `gateway` speaks
    for people whom it has authenticated itself, so it may use any name. A dashboard publishes no event at all: it hears what the
    table lets it hear, and asks requests that change nothing.

    Raises:
        ValueError: the identity is not a name, or a service's identity is not its own word.
    """
    inbox = f"{inbox_prefix(role, identity)}.>"
    if role == "admin":
        return Permissions(publish=(USER_INFO, "$JS.API.>", "$SRV.>"), subscribe=(inbox,), allow_responses=False)
    if role in SERVICES:
        if identity != role:
            raise ValueError(f"the service {role!r} is known by that word alone, not as {identity!r}")
        return _service(role, inbox)
    name = "*" if role == "gateway" else identity
    says = tuple(_said(row, name) for row in SUBJECTS if role in row.says)
    asks = tuple(f"{row.prefix}.{name}" for row in REQUESTS if role in row.asks and (role != "dashboard" or not row.changes))
    if role == "agent":
        bound = _bound(consumer_of_agent(identity))
        hears = tuple(_refusals(row, identity) for row in SUBJECTS if row.owner == "refusal" and role in row.hears)
        return Permissions(publish=(USER_INFO, *says, *asks, *bound), subscribe=(inbox, *hears), allow_responses=False)
    # A refusal names its publisher: a person hears those of his own messages. All else that the table grants is open to all people.
    refused = "*" if role in ("gateway", "dashboard") else identity
    hears = tuple(_refusals(row, refused) if row.owner == "refusal" else row.pattern for row in SUBJECTS if role in row.hears)
    return Permissions(publish=(USER_INFO, *says, *asks, *_pictures(role)), subscribe=(inbox, *hears), allow_responses=False)


def _pictures(role: Role) -> tuple[str, ...]:
    """The question for last values, of streams that keep them and of which the role hears everything anyway."""
    return tuple(
        f"$JS.API.DIRECT.GET.{stream.name}"
        for stream in STREAMS
        if stream.last_value_only and all(role in row.hears for row in SUBJECTS if row.stream == stream.name)
    )


def _service(role: Role, inbox: str) -> Permissions:
    says = tuple(
        ".".join((row.prefix, role, *("*" for _ in row.tokens[1:]))) if row.owner == "refusal" else row.pattern
        for row in SUBJECTS
        if role in row.says
    )
    consumers = consumers_of(role)
    bound = tuple(pattern for consumer in consumers for pattern in _bound(consumer))
    infos = tuple(f"$JS.API.STREAM.INFO.{consumer.stream}" for consumer in consumers)
    answers = tuple(row.pattern for row in REQUESTS if row.service == role)
    return Permissions(publish=(USER_INFO, *says, *bound, *infos), subscribe=(inbox, *answers, "$SRV.>"), allow_responses=True)


def _said(row: Subject, name: str) -> str:
    """The pattern on which somebody outside the core publishes: the first token is the own name."""
    return ".".join((row.prefix, name, *("*" for _ in row.tokens[1:])))


def _refusals(row: Subject, publisher: str) -> str:
    """The refusals of one publisher's messages."""
    return ".".join((row.prefix, *(publisher if field == "publisher" else "*" for field in row.tokens)))


def _bound(consumer: Consumer) -> tuple[str, ...]:
    """What a user of a consumer sends: pull, look at its lag, rewind it to what is unacknowledged, and acknowledge.

    Two forms of acknowledgement: that of old, and that of ADR-15's second version, with domain and account hash before the stream.
    """
    tail = f"{consumer.stream}.{consumer.durable}"
    return (
        f"$JS.API.CONSUMER.MSG.NEXT.{tail}",
        f"$JS.API.CONSUMER.INFO.{tail}",
        f"$JS.API.CONSUMER.RESET.{tail}",
        f"$JS.ACK.{tail}.>",
        f"$JS.ACK.*.*.{tail}.>",
    )


def allows(patterns: tuple[str, ...], subject: str) -> bool:
    """True when one of the patterns covers the subject, or the narrower pattern, as the server reads them."""
    return any(covers(pattern, subject) for pattern in patterns)


def covers(pattern: str, subject: str) -> bool:
    """True when every subject of `subject` (itself perhaps a pattern) is one of `pattern`: `*` is one token, `>` the rest."""
    wanted, given = pattern.split("."), subject.split(".")
    for position, part in enumerate(wanted):
        if part == ">":
            return len(given) > position
        if position >= len(given) or given[position] == ">":
            return False
        if part not in ("*", given[position]):
            return False
    return len(wanted) == len(given)
