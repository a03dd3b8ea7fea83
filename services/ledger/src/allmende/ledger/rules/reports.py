"""The statement of a budget from what its attempts were charged. Pure; never rounds."""

from collections.abc import Sequence
from typing import NamedTuple

from allmende.ledger.model import Charged
from allmende.proto.units import GpuMs, Ms


class Statement(NamedTuple):
    """`lines`: the attempts that lived in the span, by id.

    closing = opening + what the lines were charged within it + `corrected_gpu_ms`, below 0 where corrections took off more.
    """

    opening_gpu_ms: GpuMs
    closing_gpu_ms: GpuMs
    held_gpu_ms: GpuMs
    corrected_gpu_ms: int
    lines: tuple[Charged, ...]


def state(attempts: Sequence[Charged], from_ms: Ms, corrected: tuple[int, int] = (0, 0)) -> Statement:
    """Sum up a budget's attempts that were granted before the span's end; those that ended before it began are in the opening.

    `corrected`: what corrections charge before the span, and in it.
    """
    lines = tuple(each for each in attempts if each.ended_at_ms is None or each.ended_at_ms > from_ms or each.within_gpu_ms)
    opening = sum(each.before_gpu_ms for each in attempts) + corrected[0]
    closing = opening + sum(each.within_gpu_ms for each in lines) + corrected[1]
    return Statement(opening, closing, sum(each.held_gpu_ms for each in lines), corrected[1], lines)
