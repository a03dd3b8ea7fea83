"""A lab's past in one value: what `allmende budgets replay` gathers from the services and hands to the simulator, or keeps.

Made of the services' own replies. Holds people's names and what they asked for, never what their jobs run.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from allmende.proto.admission import NodeView, PastJob
from allmende.proto.budget import Budget
from allmende.proto.ids import Name
from allmende.proto.ledger import BucketBooks
from allmende.proto.units import Instant


class PastTree(Struct, frozen=True, kw_only=True):
    """A revision of the tree, in force from an instant until the next one's."""

    revision: int
    from_ms: Instant
    budgets: tuple[Budget, ...]


class LabHistory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The past of one cluster: `[from_ms, to_ms)` is what was asked about, `[begin_ms, from_ms)` leads up to it.

    A lab that is younger than what was asked about begins after `from_ms`.
    """

    version: Literal[1] = 1
    cluster: Name
    begin_ms: Instant
    from_ms: Instant
    to_ms: Instant
    trees: Annotated[tuple[PastTree, ...], Meta(min_length=1)]
    """Oldest first; the last is in force now."""
    nodes: Annotated[tuple[NodeView, ...], Meta(min_length=1)]
    """As they are now: no service keeps what each node was."""
    step_ms: Annotated[int, Meta(ge=1)]
    books: tuple[BucketBooks, ...]
    """The ledger's books in steps of `step_ms` from `begin_ms` on; the last step ends at `to_ms`."""
    jobs: tuple[PastJob, ...]
    """Every job that lived in `[begin_ms, to_ms)`, on whatever cluster."""

    def __post_init__(self) -> None:
        """Hold it against itself: a file may have been changed by hand.

        Raises:
            ValueError: instants out of order, a job that is there twice, or one without a GPU.
        """
        if max(self.begin_ms, self.from_ms) >= self.to_ms:
            raise ValueError("to_ms is not after begin_ms and from_ms")
        if len({job.job for job in self.jobs}) != len(self.jobs):
            raise ValueError("a job is there twice")
        if any(job.gpus_per_replica < 1 for job in self.jobs):
            raise ValueError("a job asks for no GPU")
