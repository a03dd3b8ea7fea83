"""The settings of the workload: its manual."""

from typing import Annotated

from msgspec import Meta

from allmende.agent.program import ProgramSettings
from allmende.proto.ids import Name


class WorkloadSettings(ProgramSettings, frozen=True, kw_only=True):
    """ALLMENDE_WORKLOAD_SEED and so on, beside what every program has."""

    seed: int = 1
    """Decides teams, people and jobs."""
    gpus: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_024
    """GPUs of the cluster: the closed loop asks for 2.5 times as many; the trace's leftovers are those of so many."""
    log_file: str
    """What was submitted and how it ended, JSON lines."""
    caller: Name = "gateway"
    """The identity of the credentials, which are a gateway's: it speaks for all the people."""
    trace: str | None = None
    """A trace like philly.csv, with its nodes in philly_vc_nodes.csv beside it; unset: the closed loop."""
    trace_from: str = "2017-10-05"
    """The day or instant (UTC) from which the trace is replayed."""
    check_s: Annotated[int, Meta(ge=1, le=3_600)] = 15
    """Real seconds between two looks at admission's own list of jobs, in case an end was missed."""
