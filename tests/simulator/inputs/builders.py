"""Values and files for the tests of the simulator's inputs."""

from pathlib import Path
from typing import TypeVar

from allmende.proto.units import HOUR_MS, Ms
from allmende.simulator.inputs.faults import Read
from allmende.simulator.model import Job

T = TypeVar("T")

TRACES = Path(__file__).parents[3] / ".." / "shared" / "traces"


def a_job(
    name: str = "j1",
    at_ms: Ms = 0,
    *,
    user: str = "ada",
    budget: str | None = "vision",
    replicas: int = 1,
    gpus: int = 1,
    runtime_ms: Ms = HOUR_MS,
) -> Job:
    """A job."""
    return Job(
        job=name,
        submitted_at_ms=at_ms,
        user=user,
        budget=budget,
        replicas=replicas,
        gpus_per_replica=gpus,
        runtime_ms=runtime_ms,
        slice_ms=HOUR_MS if budget else 0,
    )


def written(folder: Path, content: str | bytes, name: str = "input") -> Path:
    """A file with this content."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def value(read: Read[T]) -> T:
    """What was read; there must be no fault."""
    assert read.faults == ()
    assert read.value is not None
    return read.value


def places(read: Read[T]) -> list[tuple[int, int, str, str]]:
    """(line, column, name, code) of every fault; the file could not be used."""
    assert read.value is None
    return [(fault.line, fault.column, fault.name, fault.code) for fault in read.faults]
