"""The figures as JSON, under the demo's names where it has them: the same bytes for the same history, but for what the run cost."""

import msgspec
from msgspec.structs import asdict

from allmende.simulator.figures.compare import Comparison
from allmende.simulator.figures.model import Cost, Figures


def encode(figures: Figures, cost: Cost | None = None) -> bytes:
    """The figures as an object of their own. Ends with a newline."""
    return _written(figures_said(figures, cost))


def figures_said(figures: Figures, cost: Cost | None = None) -> dict[str, object]:
    """The figures by name, and `runtime_s`, `peak_mib` and `ms_per_event` where a cost is given.

    Hours are left out: they are in `teams_hourly.csv`.
    """
    said = {name: value for name, value in asdict(figures).items() if name != "hourly"}
    said["partial"] = figures.partial
    return said | ({} if cost is None else asdict(cost))


def encode_comparison(comparison: Comparison) -> bytes:
    """Several runs side by side. Ends with a newline."""
    return _written(asdict(comparison))


def _written(said: dict[str, object]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(said), indent=2) + b"\n"
