"""What people command about their jobs: to end, hold or change one, or all of an array."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from allmende.proto.ids import Id
from allmende.proto.units import Span


class CancelJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End a job of the caller's own, waiting or running. `array`: and all others of its array."""

    job: Annotated[str, Meta(min_length=4, max_length=26, pattern=r"\A[0-9a-z]+\Z")]
    array: bool = False


class Cancelled(Struct, frozen=True, kw_only=True):
    """`status`: `ended` at once, `ending` when the agent was told, `already_ended` before; of an array the latest of all its jobs.

    `jobs`: how many were ended, or are ending. `left`: of a large array so many more; the same request goes on with them.
    """

    job: Id
    status: Literal["ended", "ending", "already_ended"]
    jobs: int = 1
    left: int = 0


class ChangeJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change a waiting job of the caller's own; what is unset stays. `held` True: it shall not start.

    `array`: and all others that wait of its array.
    """

    job: Annotated[str, Meta(min_length=4, max_length=26, pattern=r"\A[0-9a-z]+\Z")]
    array: bool = False
    held: bool | None = None
    priority: Annotated[int, Meta(ge=-1_000, le=1_000)] | None = None
    slice_ms: Span | None = None


class Changed(Struct, frozen=True, kw_only=True):
    """The job as it is now; `unchanged`: it was so already."""

    job: Id
    status: Literal["changed", "unchanged"]
    held: bool
    priority: int
    slice_ms: Span
    jobs: int = 1
    """How many were changed, or were so already."""
    left: int = 0
    """Of a large array so many more wait; the same request goes on with them."""
