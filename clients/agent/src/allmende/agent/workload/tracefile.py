"""Reads a trace and its nodes from disk, or makes the generated lab where there is none."""

from datetime import UTC, datetime
from pathlib import Path

from allmende.agent.workload.lab import Lab, generate
from allmende.agent.workload.philly import TraceError, TraceJob, lab_of, read_jobs, read_nodes
from allmende.chassis.errors import Misconfigured
from allmende.proto.units import LATEST_INSTANT_MS, SECOND_MS, Ms

NODES_FILE = "philly_vc_nodes.csv"


def lab_and_jobs(seed: int, trace: str | None) -> tuple[Lab, list[TraceJob]]:
    """The lab of a seed and no jobs, or that of a trace and its jobs in order.

    Raises:
        Misconfigured: a file is missing or has bad rows, which are named.
    """
    if trace is None:
        return generate(seed), []
    path = Path(trace)
    at = path
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            jobs = read_jobs(lines)
        at = path.with_name(NODES_FILE)
        with at.open(encoding="utf-8", newline="") as lines:
            nodes = read_nodes(lines)
        return lab_of(jobs, nodes), jobs
    except (OSError, UnicodeDecodeError, TraceError, ValueError) as error:
        raise Misconfigured(f"the trace cannot be used: {at.name}: {error}") from error


def parse_instant(text: str) -> Ms:
    """A day or an instant, in UTC where it names no zone.

    Raises:
        Misconfigured: neither.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Misconfigured(f"{text!r} is not a day such as 2017-10-05") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    instant_ms = int(at.timestamp()) * SECOND_MS
    if not 0 <= instant_ms <= LATEST_INSTANT_MS:
        raise Misconfigured(f"{text!r} is not between 1970 and 2100")
    return instant_ms
