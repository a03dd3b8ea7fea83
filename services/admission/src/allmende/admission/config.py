"""The settings of the admission service: the operator's manual."""

from typing import Annotated

from msgspec import Meta

from allmende.chassis.boot import BaseSettings
from allmende.proto.order import DEFAULT_MARGIN_PPM
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS, Span
from allmende.proto.user import DEFAULT_SLICE_CAP_MS

Count = Annotated[int, Meta(ge=1, le=1_000)]


class Settings(BaseSettings, frozen=True, kw_only=True):
    """ALLMENDE_ADMISSION_* in the environment, or the file named by --settings.

    Lengths are milliseconds. Those named `real_` pass in real time whatever the clock's rate; the others are lab time and scale.
    """

    slice_cap_ms: Span = DEFAULT_SLICE_CAP_MS
    """The longest slice that may be asked for; also where a slice stops growing after evictions."""
    real_start_timeout_ms: Span = 30 * SECOND_MS
    """An attempt that has not started by then is stopped, and its job tried elsewhere."""
    real_silent_after_ms: Span = 30 * SECOND_MS
    """A node without any sign of life for this long gets nothing new. What runs there keeps its GPUs."""
    real_answer_wait_ms: Span = SECOND_MS
    """How long nothing is granted on a cluster while the preemptor answers a claim."""
    claim_grace_ms: Span = 120 * SECOND_MS
    """The longest notice a victim has. A claim times out after this plus `real_claim_allowance_ms`."""
    real_claim_allowance_ms: Span = 30 * SECOND_MS
    """The time that messages and ending processes may take on top of the notice."""
    claims_max: Count = 64
    """Open claims on one cluster."""
    real_claim_backoff_ms: Span = SECOND_MS
    """How long a job whose claim was infeasible waits at least before the next one; doubles each time."""
    real_claim_backoff_max_ms: Span = 30 * SECOND_MS
    """Where that doubling ends."""
    requeue_backoff_ms: Span = MINUTE_MS
    """How long an unallocated job waits after an eviction; doubles each time."""
    requeue_backoff_max_ms: Span = 30 * MINUTE_MS
    """Where that doubling ends."""
    avoid_ms: Span = 5 * MINUTE_MS
    """How long a job avoids nodes that did not start it."""
    start_failures_max: Count = 3
    """A job that could not be started so many times in a row is refused."""
    real_settle_ms: Span = 5 * SECOND_MS
    """What does not fit is refused only when no new node has turned up for this long: nodes are told one by one."""
    stop_grace_ms: Span = 120 * SECOND_MS
    """The notice of a job that is cancelled or reaches its maximum runtime."""
    margin_ppm: Annotated[int, Meta(ge=0, le=10_000_000)] = DEFAULT_MARGIN_PPM
    """By how much a claimant's ratio must stay below its victim's; the same as the preemptor's, or claims are raised in vain."""
    reservations_max: Annotated[int, Meta(ge=0, le=16)] = 0
    """Large jobs that nodes are gathered for at the same time on a cluster whose policy does not say (`reservations`); 0: none."""
    operators: tuple[str, ...] = ()
    """Users who may cancel anybody's job."""
    keep_ended_ms: Span = 90 * 24 * HOUR_MS
    """Jobs that ended longer ago are forgotten, with their decisions."""
