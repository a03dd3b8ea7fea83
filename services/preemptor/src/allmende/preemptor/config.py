"""The preemptor's settings. Each docstring is the operator's manual for its field."""

from typing import Annotated

from msgspec import Meta

from allmende.chassis.boot import BaseSettings
from allmende.preemptor.model import Policy
from allmende.proto.order import DEFAULT_MARGIN_PPM
from allmende.proto.units import MINUTE_MS, SECOND_MS, Span


class Settings(BaseSettings, frozen=True, kw_only=True):
    """Settings of `python -m allmende.preemptor`, from ALLMENDE_PREEMPTOR_* or a TOML file."""

    margin_ppm: Annotated[int, Meta(ge=0, le=10_000_000)] = DEFAULT_MARGIN_PPM
    """How far the claimant's ratio after the grant must lie below the victim's, in parts per million: 100000 is 0.1.
    Smaller evicts more often between near-equal teams; 0 lets them swap at every slice's end."""
    grace_ms: Span = 2 * MINUTE_MS
    """Clock time between SIGTERM and SIGKILL for an allocated attempt."""
    unallocated_grace_ms: Span = 10 * SECOND_MS
    """The same for an unallocated attempt. Debug jobs wait this long where unallocated work runs."""
    real_leave_allowance_ms: Annotated[int, Meta(ge=1_000)] = 60 * SECOND_MS
    """Real time after the grace until an attempt that was told to leave and is still there raises an alarm (`eviction.overdue`).
    Its GPUs then count as held again."""
    silent_after_ms: Annotated[int, Meta(ge=1_000)] = 30 * SECOND_MS
    """Real time without a sign of life after which nothing is planned on a node."""
    search_steps: Annotated[int, Meta(ge=0, le=100_000_000)] = 200_000
    """How much work the search for cheaper victims may do for one claim: about a second for each million. More finds slightly
    cheaper plans where large gangs are evicted; room is found with any value, if there is any."""

    def policy(self, rate: int) -> Policy:
        """What the rules need of it, all in clock time: real settings are multiplied by the clock's rate."""
        return Policy(
            margin_ppm=self.margin_ppm,
            grace_ms=self.grace_ms,
            unallocated_grace_ms=self.unallocated_grace_ms,
            leave_allowance_ms=self.real_leave_allowance_ms * rate,
            search_steps=self.search_steps,
        )
