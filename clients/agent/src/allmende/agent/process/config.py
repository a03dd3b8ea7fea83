"""The settings of a process agent: its manual."""

from typing import Annotated, Literal

from msgspec import Meta

from allmende.agent.program import ProgramSettings
from allmende.proto.ids import Name


class ProcessSettings(ProgramSettings, frozen=True, kw_only=True):
    """ALLMENDE_PROCESS_CLUSTER and so on, beside what every program has."""

    cluster: Name = "c1"
    """The cluster's name, which is also the identity of its credentials."""
    node: str = ""
    """The machine's name in the cluster; empty: what the machine calls itself."""
    gpus: Annotated[int, Meta(ge=1, le=1_024)] | None = None
    """GPUs that are handed out. Unset: as many as NVML finds. Set on a machine without any, its jobs share what there is."""
    folder: str
    """Where attempts, checkpoints and logs are kept. One agent at a time; must stay the same when the agent is started again."""
    at_stop: Literal["keep", "end"] = "keep"
    """What becomes of running jobs when the agent is asked to end: they run on and the next agent takes them over, or they end."""
    cgroups: bool = True
    """Give each replica a cgroup where the agent may make one."""
    tick_ms: Annotated[int, Meta(ge=50, le=60_000)] = 10_000
    """Real milliseconds between two usage ticks."""
