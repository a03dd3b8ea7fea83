"""The capacity of a cluster over time, out of its nodes' reports (contract §3: healthy GPUs, as intervals).

Never reads "unknown" as zero: before the first report there is no level at all.
"""

from collections.abc import Iterable

from allmende.ledger.model import Level, NodeStep
from allmende.proto.units import Ms


def levels(steps: Iterable[NodeStep], from_ms: Ms, to_ms: Ms) -> tuple[Level, ...]:
    """Levels that cover `[from_ms, to_ms)` from the first report on, in order, without two equal neighbours.

    `steps`: reports of one cluster in any order, of each node also the last one before `from_ms`.
    """
    nodes: dict[str, tuple[int, int]] = {}
    installed = available = 0
    found: list[Level] = []
    begin_ms: Ms | None = None
    for step in sorted(steps, key=lambda each: (each.at_ms, each.node)):
        if step.at_ms >= to_ms:
            break
        if begin_ms is not None:
            _append(found, Level(max(begin_ms, from_ms), max(step.at_ms, from_ms), installed, available))
        before = nodes.get(step.node, (0, 0))
        nodes[step.node] = (step.installed, step.healthy)
        installed += step.installed - before[0]
        available += step.healthy - before[1]
        begin_ms = step.at_ms
    if begin_ms is not None:
        _append(found, Level(max(begin_ms, from_ms), to_ms, installed, available))
    return tuple(found)


def _append(found: list[Level], level: Level) -> None:
    if level.from_ms >= level.to_ms:
        return
    last = found[-1] if found else None
    if last is not None and (last.installed, last.available, last.to_ms) == (level.installed, level.available, level.from_ms):
        found[-1] = last._replace(to_ms=level.to_ms)
    else:
        found.append(level)
