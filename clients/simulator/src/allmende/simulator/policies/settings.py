"""The settings of the policy `allmende`: the knobs of the services' rules. Each can be overridden by name."""

from msgspec import Struct

from allmende.admission.model.values import Terms
from allmende.preemptor.model import Policy
from allmende.proto.order import DEFAULT_MARGIN_PPM
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Ms, Ppm


class Settings(Struct, frozen=True, kw_only=True):
    """What may be set. Lengths in milliseconds."""

    window_ms: Ms = 2 * DAY_MS
    """The look-back of standings."""
    slice_cap_ms: Ms = 8 * HOUR_MS
    """The longest slice."""
    margin_ppm: Ppm = DEFAULT_MARGIN_PPM
    """By how much a claimant's ratio must stay below its victim's."""
    grace_ms: Ms = 2 * MINUTE_MS
    """Notice of an allocated attempt."""
    unallocated_grace_ms: Ms = 10 * SECOND_MS
    """Notice of an unallocated attempt."""
    claims_max: int = 64
    """Open claims."""
    requeue_backoff_ms: Ms = MINUTE_MS
    """How long an unallocated job waits after an eviction; doubles each time."""
    requeue_backoff_max_ms: Ms = HOUR_MS
    """Where that doubling ends."""
    waste_ppm: Ppm = 30_000
    """An eviction may lose at most this part of what the claimant's slice gives; 0: any."""
    loss_first: bool = True
    """Among lawful victims, least lost work before most over-served leaf."""
    idle_after_ms: Ms = 30 * MINUTE_MS
    """An attempt that was idle for so long goes after its slice, and no room is made for its job again; 0: never."""
    idle_slice_ms: Ms = 30 * MINUTE_MS
    """The longest slice of a job that was evicted idle; 0: as any other."""
    bother_ms: Ms = 15 * MINUTE_MS
    """Each earlier eviction of a job counts as so much lost time of its GPUs when victims are chosen; 0: not at all."""
    claims_rest_ms: Ms = MINUTE_MS
    """Between two rounds of looks for claims only kinds that somebody has joined are looked at; 0: no rest."""
    patience: int = 2
    """Each time a job has been evicted so often again, its next slice doubles."""
    reservations_max: int = 4
    """Jobs that nodes are gathered for at the same time."""
    reserved_ppm: Ppm = 500_000
    """The part of the nodes that may be gathered at the same time."""
    gang_ppm: Ppm = 125_000
    """Nodes are gathered for jobs of at least this part of the cluster's GPUs."""
    gang_wait_ms: Ms = 24 * HOUR_MS
    """After so long, nodes are gathered also for a large job whose leaf is over budget, but below `gang_ratio_ppm`."""
    gang_ratio_ppm: Ppm = 1_250_000
    """See `gang_wait_ms`; 100 %: never."""
    quick_ppm: Ppm = 20_000
    """The part of the nodes that is kept for unallocated work and for short slices; rounded down."""
    quick_slice_ms: Ms = 15 * MINUTE_MS
    """What a short slice is."""

    def terms(self) -> Terms:
        """What admission's rules are given."""
        return Terms(
            slice_cap_ms=self.slice_cap_ms,
            # No node is ever silent here: what fails says so at once.
            silent_after_ms=1_000 * 366 * DAY_MS,
            start_timeout_ms=30 * SECOND_MS,
            answer_wait_ms=0,
            claim_timeout_ms=self.grace_ms + 30 * SECOND_MS,
            claims_max=self.claims_max,
            claim_backoff_ms=SECOND_MS,
            claim_backoff_max_ms=30 * SECOND_MS,
            requeue_backoff_ms=self.requeue_backoff_ms,
            requeue_backoff_max_ms=self.requeue_backoff_max_ms,
            avoid_ms=5 * MINUTE_MS,
            start_failures_max=3,
            settle_ms=5 * SECOND_MS,
            stop_grace_ms=self.grace_ms,
            margin_ppm=self.margin_ppm,
            waste_ppm=self.waste_ppm,
            patience=self.patience,
            idle_slice_ms=self.idle_slice_ms,
            claims_rest_ms=self.claims_rest_ms,
            reservations_max=self.reservations_max,
            reserved_ppm=self.reserved_ppm,
            gang_ppm=self.gang_ppm,
            gang_wait_ms=self.gang_wait_ms,
            gang_ratio_ppm=self.gang_ratio_ppm,
            notice_ms=self.grace_ms + 30 * SECOND_MS,
            quick_ppm=self.quick_ppm,
            quick_slice_ms=self.quick_slice_ms,
        )

    def preemptor(self) -> Policy:
        """What the preemptor's rules are given."""
        return Policy(
            margin_ppm=self.margin_ppm,
            grace_ms=self.grace_ms,
            unallocated_grace_ms=self.unallocated_grace_ms,
            waste_ppm=self.waste_ppm,
            loss_first=self.loss_first,
            bother_ms=self.bother_ms,
        )
