"""What the demo overhears on the bus while it runs: counts for the screen, promises and orders for the audit.

Listens only. The audit compares what it wrote with what the cluster really did.
"""

from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec

from allmende.chassis.ports import Bus
from allmende.proto.admission import AttemptProtected, ClaimRaised, JobEnded, JobGranted, JobQueued, JobRefused
from allmende.proto.envelope import Refusal, decode
from allmende.proto.ledger import UsageStanding
from allmende.proto.message import Message, MessageRefused
from allmende.proto.preemptor import EvictionOrdered
from allmende.proto.subjects import BY_MESSAGE

_encoder = msgspec.json.Encoder()

HEARD: tuple[type[Message], ...] = (
    JobQueued,
    JobRefused,
    JobGranted,
    AttemptProtected,
    JobEnded,
    ClaimRaised,
    EvictionOrdered,
    UsageStanding,
    MessageRefused,
)


class Recorder:
    """Counts messages by type, keeps the newest standing of each budget, writes protections and orders to files."""

    def __init__(self, folder: Path) -> None:
        self.counts: dict[type[Message], int] = dict.fromkeys(HEARD, 0)
        self.standings: dict[str, UsageStanding] = {}
        self.refusals: list[MessageRefused] = []
        # Accepted jobs, each once: a job that comes back after an eviction is queued again.
        self.submitted = 0
        self.protected_file = folder / "protected.jsonl"
        self.evictions_file = folder / "evictions.jsonl"
        self._files: dict[type[Message], BinaryIO] = {}

    def __enter__(self) -> "Recorder":
        self._files = {AttemptProtected: self.protected_file.open("wb"), EvictionOrdered: self.evictions_file.open("wb")}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()

    async def listen(self, bus: Bus) -> None:
        """Begin to listen; ends with the bus."""
        for message in HEARD:
            await bus.watch(BY_MESSAGE[message].pattern, self._hear)

    def flush(self) -> None:
        """Let readers of the files see everything that was heard."""
        for file in self._files.values():
            file.flush()

    def _hear(self, _subject: str, data: bytes) -> None:
        try:
            body = decode(data).body
        except Refusal:
            # Not ours to judge: the services that read the stream refuse it and say so.
            return
        self.counts[type(body)] = self.counts.get(type(body), 0) + 1
        if file := self._files.get(type(body)):
            file.write(_encoder.encode(body) + b"\n")
        if isinstance(body, JobQueued) and body.after_attempt is None:
            self.submitted += 1
        if isinstance(body, UsageStanding):
            self.standings[body.budget] = body
        if isinstance(body, MessageRefused):
            self.refusals.append(body)
