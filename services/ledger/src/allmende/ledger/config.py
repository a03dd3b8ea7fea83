"""The settings of the ledger: the operator's manual."""

from typing import Annotated

from msgspec import Meta

from allmende.chassis.boot import BaseSettings
from allmende.proto.units import DAY_MS, HOUR_MS, SECOND_MS
from allmende.proto.user import DEFAULT_SLICE_CAP_MS


class Settings(BaseSettings, frozen=True, kw_only=True):
    """ALLMENDE_LEDGER_* in the environment, or the file named by --settings."""

    window_ms: Annotated[int, Meta(ge=HOUR_MS, le=366 * DAY_MS)] = 7 * DAY_MS
    """The look-back window of standings, in clock milliseconds, rounded down to whole buckets of 5 minutes."""
    half_life_ms: Annotated[int, Meta(ge=HOUR_MS, le=366 * DAY_MS)] | None = None
    """After how long a bucket counts half, on usage and entitlement alike, in clock milliseconds. Unset: all of the window counts
    whole."""
    slice_cap_ms: Annotated[int, Meta(ge=0, le=30 * DAY_MS)] = DEFAULT_SLICE_CAP_MS
    """The cluster's cap on a slice. Every budget's entitlement is at least cap x its share x available GPUs, so that a newly funded
    budget is not judged on a sliver of time."""
    allowance_ms: Annotated[int, Meta(ge=0, le=HOUR_MS)] = 5 * SECOND_MS
    """How far an agent's clock may be off, in real milliseconds. What a counter claims beyond that is set aside, not posted."""
    silence_ms: Annotated[int, Meta(ge=SECOND_MS, le=HOUR_MS)] = 30 * SECOND_MS
    """Real milliseconds without a counter of a running attempt after which its gap is shown as open. Charging pauses by itself."""
    keep_heard_ms: Annotated[int, Meta(ge=DAY_MS, le=10 * 366 * DAY_MS)] = 30 * DAY_MS
    """How long what was heard is kept, in clock milliseconds: the postings of that time can be computed anew. Whole days are
    dropped, and only behind a seal."""
    batch: Annotated[int, Meta(ge=1, le=4_096)] = 1_024
    """The most messages in one transaction. Larger batches are cheaper a message and later for the first of them."""
