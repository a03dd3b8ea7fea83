"""What admission has to say, before it has a wire form: facts that rules return and `wire` turns into messages.

Never sent from here.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias

from allmende.admission.model.values import Attempt, Claim, Cordon, Decided, Job, KnownPolicy, Node, Reason, StopReason
from allmende.proto.units import Ms


class Queued(NamedTuple):
    """The job waits; `after_attempt` is set when it is back."""

    job: Job
    after_attempt: str | None
    warnings: tuple[Reason, ...]
    blockers: tuple[Reason, ...]


class Refused(NamedTuple):
    """The job can never run as it was submitted."""

    user: str
    job: str
    reason: Reason


class Granted(NamedTuple):
    """The job may start, exactly there."""

    job: Job
    attempt: Attempt
    tree_revision: int
    usage_revision: int


class Protected(NamedTuple):
    """The attempt started; nobody evicts it before its `protected_until_ms`."""

    attempt: Attempt


class StopOrdered(NamedTuple):
    """The agent shall end the attempt for another reason than an eviction."""

    attempt: Attempt
    reason: StopReason


class Ended(NamedTuple):
    """Nothing more will happen to the job."""

    job: Job
    exit_code: int | None


class Claimed(NamedTuple):
    """The preemptor shall make room."""

    claim: Claim


class Withdrawn(NamedTuple):
    """The claim is void."""

    claim: Claim
    reason: Literal["started", "cancelled", "timed_out", "refused", "elsewhere"]


class Altered(NamedTuple):
    """Somebody has changed a waiting job."""

    job: Job
    author: str


class Closed(NamedTuple):
    """Nothing more is granted on a cordoned node; all that ever was is up to this grant of its cluster."""

    cordon: Cordon
    newest_grant_seq: int


class DeclaredLost(NamedTuple):
    """An operator says that a node is dead, and these attempts with it."""

    node: Node
    by: str
    reason: str
    at_ms: Ms
    last_seen_ms: Ms
    attempts: tuple[Attempt, ...]


class Decreed(NamedTuple):
    """A cluster has another policy."""

    known: KnownPolicy


Fact: TypeAlias = (
    Altered | Closed | Queued | Refused | Granted | Protected | StopOrdered | Ended | Claimed | Withdrawn | DeclaredLost | Decreed
)


class Change(NamedTuple):
    """Everything one decision changes and says. Applied to memory and rows by one function (`Books.apply`)."""

    jobs: tuple[Job, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    claims: tuple[Claim, ...] = ()
    nodes: tuple[Node, ...] = ()
    cordons: tuple[Cordon, ...] = ()
    facts: tuple[Fact, ...] = ()
    decisions: tuple[Decided, ...] = ()
    stirred: tuple[str, ...] = ()
    """Clusters where something became free or interruptible."""


NOTHING = Change()


def together(changes: Iterable[Change]) -> Change:
    """All of them, in this order."""
    columns = zip(*changes, strict=True)
    return Change(*(tuple(chain.from_iterable(column)) for column in columns))
