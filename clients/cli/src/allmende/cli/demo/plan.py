"""What a demo shall do: its options as one value, and what follows from them. Pure."""

from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from allmende.cli.errors import CommandFailed, Exit
from allmende.proto.units import HOUR_MS, SECOND_MS, Ms

# Before this day the Philly trace hardly fills 500 GPUs.
DEFAULT_TRACE_FROM = "2017-10-05"
CLUSTER = "demo"
GPUS_PER_NODE = 8
# Servers and services need about this long to start; the scaled clock begins that much earlier, so that the load begins on time.
START_REAL_S = 8


class DemoPlan(Struct, frozen=True, kw_only=True):
    """The options of `allmende demo`. `folder` None: a temporary one that is removed."""

    seconds: int
    seed: int
    rate: int
    gpus: int
    trace: Path | None
    trace_from: str
    json_file: Path | None
    folder: Path | None


def load_begins_ms(plan: DemoPlan, real_ms: Ms) -> Ms:
    """The instant on the lab's clock at which the load shall begin: the trace's day, else the next full hour.

    Raises:
        CommandFailed: `trace_from` is not a date.
    """
    if plan.trace is None:
        return (real_ms // HOUR_MS + 1) * HOUR_MS
    try:
        day = datetime.strptime(plan.trace_from, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise CommandFailed(Exit.USAGE, f"--trace-from {plan.trace_from!r} is not a date like {DEFAULT_TRACE_FROM}") from None
    return int(day.timestamp()) * SECOND_MS


def clock_setting(plan: DemoPlan, real_ms: Ms) -> str:
    """The clock of the run, as every process gets it: REAL_MS:ORIGIN_MS:RATE."""
    origin_ms = load_begins_ms(plan, real_ms) - START_REAL_S * SECOND_MS * plan.rate
    return f"{real_ms}:{origin_ms}:{plan.rate}"
