"""The settings of a process agent: its manual."""

from collections.abc import Sequence
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


def variables_of(options: Sequence[str]) -> dict[str, str]:
    """Options of the command line as the variables of their settings, whose own check names what does not exist."""
    words = [part for option in options for part in (option.split("=", 1) if option.startswith("--") else [option])]
    pairs = zip(words[::2], words[1::2], strict=False)
    found = {f"ALLMENDE_PROCESS_{key.removeprefix('--').replace('-', '_').upper()}": value for key, value in pairs}
    if len(words) % 2:
        found[f"ALLMENDE_PROCESS_{words[-1].removeprefix('--').replace('-', '_').upper()}"] = ""
    return found
