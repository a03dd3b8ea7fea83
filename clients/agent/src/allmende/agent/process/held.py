"""One attempt that runs on this machine: its folder, its replicas, and what their ends mean together.

Starts nothing. Knows no agent and no bus: what is to be said of an end comes out as a value.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from allmende.agent.process import records
from allmende.agent.process.cgroups import Cgroups
from allmende.agent.process.machine import boot_ms
from allmende.agent.process.records import Record
from allmende.agent.process.replica import Gone, Replica
from allmende.agent.process.sweep import sweep
from allmende.agent.sdk.backend import Cause, Exit, How
from allmende.proto.units import Ms

# As a shell says that SIGKILL ended a command: also of one whose keeper cannot say it any more.
KILLED = 137


class Held:
    """An attempt that holds GPUs. `record` is as it was kept last."""

    def __init__(self, folder: Path, record: Record, cgroups: Cgroups | None) -> None:
        self.folder = folder
        self.record = record
        self.warned_ms: Ms | None = None
        """The warning that this agent saw or wrote last."""
        self.replicas = replicas_of(folder, len(record.devices))
        self._cgroups = cgroups
        self._gone: dict[int, Gone] = {}

    def keep(self, record: Record) -> None:
        """Keep a changed record."""
        self.record = record
        records.write(self.folder, record)

    def tell(self, order: bytes) -> None:
        """Give an order to all keepers."""
        for replica in self.replicas:
            replica.tell(order)

    def look(self) -> bool:
        """Take in which replicas have ended; True once all have. One that fails takes its gang with it."""
        for number, replica in enumerate(self.replicas):
            if number not in self._gone and (gone := self._end_of(number, replica)) is not None:
                self._gone[number] = gone
                if gone.code != 0:
                    self.tell(b"K")
        return len(self._gone) == len(self.replicas)

    def _end_of(self, number: int, replica: Replica) -> Gone | None:
        if (gone := replica.gone) is not None or replica.lives:
            return gone
        # Once more: it may have written its end and left between the two looks.
        return replica.gone or self._orphaned(number)

    def _orphaned(self, number: int) -> Gone | None:
        """The keeper was killed. What it kept is ended here; it is gone when two looks find nothing."""
        left = not self._cgroups.end(cgroup_name(self.record.attempt, number)) if self._cgroups else False
        # The mark is the attempt's, not the replica's: one that lost its keeper fails, and takes the others with it anyway.
        if sweep(self.record.attempt) or left:
            return None
        return Gone(code=None, told=self.record.cause is not None, at_boot_ms=boot_ms(), left=0)

    def held_boot_ms(self, until_boot_ms: Ms) -> Ms:
        """Real milliseconds from the start until an instant of CLOCK_BOOTTIME."""
        assert self.record.started_boot_ms is not None, "only what was started is held"
        return max(0, until_boot_ms - self.record.started_boot_ms)

    def exit(self, rate: int, checkpoint_at_ms: Ms | None, *, node_goes: bool) -> Exit:
        """What the ends mean, once all have ended. `node_goes`: they were ended because the machine leaves the cluster."""
        assert self.record.started_at_ms is not None, "only what was started ends"
        gone = sorted(self._gone.values(), key=lambda each: each.at_boot_ms)
        held_ms = self.held_boot_ms(gone[-1].at_boot_ms) * rate
        first = next((each for each in gone if each.code != 0), gone[-1])
        return Exit(
            attempt=self.record.attempt,
            ended_at_ms=self.record.started_at_ms + held_ms,
            how=_how(first, self.record.cause, node_goes=node_goes),
            exit_code=KILLED if first.code is None else first.code,
            checkpoint_at_ms=checkpoint_at_ms,
            detail=_detail(gone, first),
            held_ms=held_ms,
        )


def replicas_of(folder: Path, count: int) -> tuple[Replica, ...]:
    """The replicas of an attempt's folder."""
    return tuple(Replica(folder / str(number)) for number in range(count))


def cgroup_name(attempt: str, number: int) -> str:
    """What a replica's cgroup is called."""
    return f"{attempt}.{number}"


def saved_at_ns(checkpoint: Path) -> int | None:
    """When a job last touched its checkpoint file; None: there is none. A link is not followed: it may be a stranger's."""
    try:
        return os.lstat(checkpoint).st_mtime_ns
    except OSError:
        return None


def _how(first: Gone, cause: Cause | None, *, node_goes: bool) -> How:
    if first.code == 0:
        return "finished"
    if node_goes:
        return "node_lost"
    return "signalled" if first.told and cause is not None else "failed"


def _detail(gone: Iterable[Gone], first: Gone) -> str:
    left = sum(each.left for each in gone)
    said = ["its keeper was killed from outside"] if first.code is None else []
    said += [f"processes that it left behind were ended: {left}"] if left and not first.told else []
    return "; ".join(said)
