"""The books of a cluster in equal steps: allocated + unallocated + starting + unknown + idle = available (contract §3).

Idle is what is left, never counted by itself, and never clipped: below zero it says that the books are wrong.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from allmende.ledger.model import Level, Life, Piece
from allmende.proto.units import GpuMs, Ms

Cell: TypeAlias = tuple[int, str]
"""Number of a step, and what is summed there."""


class Steps(NamedTuple):
    """`total` steps of `step_ms` from `from_ms` on."""

    from_ms: Ms
    step_ms: Ms
    total: int

    @property
    def to_ms(self) -> Ms:
        """The end of the last step."""
        return self.from_ms + self.step_ms * self.total

    def parts(self, from_ms: Ms, to_ms: Ms) -> Iterator[tuple[int, Ms]]:
        """The steps that an interval touches, each with how much of it, in ms."""
        from_ms, to_ms = max(from_ms, self.from_ms), min(to_ms, self.to_ms)
        while from_ms < to_ms:
            number = (from_ms - self.from_ms) // self.step_ms
            edge_ms = min(self.from_ms + (number + 1) * self.step_ms, to_ms)
            yield number, edge_ms - from_ms
            from_ms = edge_ms


class Books(NamedTuple):
    """One step, all in GPU-ms."""

    from_ms: Ms
    installed: GpuMs
    available: GpuMs
    allocated: GpuMs
    unallocated: GpuMs
    starting: GpuMs
    unknown: GpuMs

    @property
    def idle(self) -> GpuMs:
        """What is left of the available GPUs; below zero only when the books are wrong."""
        return self.available - self.allocated - self.unallocated - self.starting - self.unknown


def uncounted(lives: Iterable[Life], now_ms: Ms) -> Iterator[Piece]:
    """Where GPUs were held without a counter: `starting` from the grant to the start, `unknown` in every gap of a running replica.

    Contract §3: charging pauses at the last counter, the GPUs stay occupied. A gap lasts until the next counter, the end, or now.
    """
    for life in lives:
        until_ms = now_ms if life.ended_at_ms is None else life.ended_at_ms
        seen = [run.counted[0][0] for run in life.runs if run.counted]
        started_ms = life.started_at_ms if life.started_at_ms is not None else min(seen, default=until_ms)
        for run in life.runs:
            at_ms = max(started_ms, life.granted_at_ms)
            begun_ms = run.counted[0][0] if run.counted else until_ms
            yield Piece("starting", life.granted_at_ms, min(at_ms, begun_ms, until_ms), run.gpus)
            for from_ms, to_ms in run.counted:
                yield Piece("unknown", at_ms, from_ms, run.gpus)
                at_ms = max(at_ms, to_ms)
            yield Piece("unknown", at_ms, until_ms, run.gpus)


def keep(steps: Steps, levels: Sequence[Level], posted: Mapping[Cell, GpuMs], pieces: Iterable[Piece]) -> tuple[Books, ...]:
    """The books of every step. `posted`: GPU-ms of postings by step and kind; `pieces`: what no posting holds."""
    cells: dict[Cell, GpuMs] = defaultdict(int)
    cells.update(posted)
    for piece in pieces:
        for number, part_ms in steps.parts(piece.from_ms, piece.to_ms):
            cells[number, piece.kind] += part_ms * piece.gpus
    for level in levels:
        for number, part_ms in steps.parts(level.from_ms, level.to_ms):
            cells[number, "installed"] += part_ms * level.installed
            cells[number, "available"] += part_ms * level.available
    kinds = ("installed", "available", "allocated", "unallocated", "starting", "unknown")
    return tuple(
        Books(steps.from_ms + number * steps.step_ms, *(cells[number, kind] for kind in kinds)) for number in range(steps.total)
    )
