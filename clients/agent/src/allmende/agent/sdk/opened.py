"""What is kept of one attempt from its grant to its end. Values only: `attempts` decides.

Never outlives the attempt.
"""

from typing import Literal

from allmende.agent.sdk.backend import Cause, Exit, Launch, ReplicaPlace
from allmende.proto.admission import JobGranted
from allmende.proto.units import GpuMs, Ms

Phase = Literal["fetching", "starting", "running"]


class Opened:
    """One attempt that has not ended."""

    __slots__ = (
        "busy_gpu_ms",
        "cause",
        "epoch",
        "exit",
        "fenced",
        "grace_ms",
        "grant",
        "held_ms",
        "kill_at_ms",
        "phase",
        "places",
        "plan",
        "seq",
        "started_at_ms",
    )

    def __init__(self, grant: JobGranted | Launch, places: tuple[ReplicaPlace, ...], epoch: int) -> None:
        self.grant = grant
        self.places = places
        self.epoch = epoch
        self.phase: Phase = "fetching"
        self.started_at_ms: Ms = 0
        self.seq = 0
        self.held_ms: Ms = 0
        self.busy_gpu_ms: GpuMs | None = None
        self.cause: Cause | None = None
        self.plan: str | None = None
        self.grace_ms: Ms = 0
        self.kill_at_ms: Ms | None = None
        self.exit: Exit | None = None
        self.fenced = False
