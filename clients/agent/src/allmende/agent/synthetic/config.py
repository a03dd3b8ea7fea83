"""The settings of a synthetic cluster: its manual."""

from typing import Annotated

from msgspec import Meta

from allmende.agent.program import ProgramSettings
from allmende.proto.ids import Name

Whole = Annotated[int, Meta(ge=1, le=1_000_000)]


class SyntheticSettings(ProgramSettings, frozen=True, kw_only=True):
    """ALLMENDE_SYNTHETIC_CLUSTER and so on, beside what every program has."""

    cluster: Name = "c1"
    """The cluster's name, which is also the identity of its credentials."""
    gpus: Whole = 1_024
    """GPUs in all; the last node has what is left over."""
    gpus_per_node: Annotated[int, Meta(ge=1, le=1_024)] = 8
    """GPUs of a node."""
    seed: int = 1
    """Decides how jobs leave and which nodes fail when."""
    truth_file: str
    """The cluster's own log, JSON lines; what is there already is kept, so give every run a file of its own."""
    node_failures_per_day: Annotated[int, Meta(ge=0, le=100_000)] = 8
    """Failing nodes a day of clock time, in the whole cluster."""
    tick_s: Annotated[int, Meta(ge=1, le=3_600)] = 10
    """Seconds of clock time between two usage ticks of a node."""
    min_tick_ms: Annotated[int, Meta(ge=50, le=60_000)] = 1_000
    """Real milliseconds between them at least, whatever the clock's rate."""
    linger_ms: Annotated[int, Meta(ge=0, le=5_000)] = 1_500
    """Real milliseconds for which a cluster that was switched off still answers grants that were on their way to it."""
    close_ms: Annotated[int, Meta(ge=0, le=25_000)] = 10_000
    """Real milliseconds to wait at the end for the ledger to confirm all ends."""
