"""What an attempt's folder keeps for the next agent: where it runs since when, which order ends it. No command, no secrets."""

from pathlib import Path

import msgspec
from msgspec import Struct

from allmende.agent.sdk.backend import Cause, Launch, ReplicaPlace
from allmende.proto.units import Ms
from allmende.proto.user import Payload

# The launch of an attempt that was taken over: its command is with its keepers.
_UNKNOWN = Payload(command=("unknown",))


class Record(Struct, frozen=True, kw_only=True):
    """One attempt. `boot` names the machine's start; times of `_boot_ms` are CLOCK_BOOTTIME of that start."""

    attempt: str
    job: str
    user: str
    budget: str | None
    devices: tuple[tuple[int, ...], ...]
    gpus_per_replica: int
    slice_ms: Ms
    epoch: int
    boot: str
    began_boot_ms: Ms
    notice_before_ms: Ms
    notice_order: str
    checkpoint_ns: int | None
    """When the job's checkpoint had been written at the start of this attempt."""
    started_at_ms: Ms | None = None
    """None: it was being started when this was written."""
    started_boot_ms: Ms | None = None
    cause: Cause | None = None
    busy_gpu_ms: int | None = None

    def launch(self, node: str) -> Launch:
        """As the SDK gave it, without the command."""
        return Launch(
            attempt=self.attempt,
            job=self.job,
            user=self.user,
            budget=self.budget,
            payload=_UNKNOWN,
            places=tuple(ReplicaPlace(number, node, devices) for number, devices in enumerate(self.devices)),
            gpus_per_replica=self.gpus_per_replica,
            slice_ms=self.slice_ms,
            epoch=self.epoch,
        )


def write(folder: Path, record: Record) -> None:
    """Keep a record: a reader sees the old one or the new one, never half."""
    part = folder / "attempt.part"
    part.write_bytes(msgspec.json.encode(record))
    part.replace(folder / "attempt.json")


def read(folder: Path) -> Record | None:
    """The record of a folder; None: nothing had been kept when the agent was killed, so nothing was started."""
    try:
        return msgspec.json.decode((folder / "attempt.json").read_bytes(), type=Record)
    except FileNotFoundError:
        return None
