"""How long allocated jobs waited for their first start, by size class (contract §10). Never counts unallocated or refused jobs.

A job belongs to the span in which it was submitted, and to the cluster where it started; one that has not started, to every cluster
that it names. What ended without a start counts with its wait until then.
"""

from collections import defaultdict
from typing import NamedTuple

from allmende.ledger.rules.demand import AskedJob
from allmende.proto.impact import SIZE_CLASSES, nearest_rank
from allmende.proto.units import Ms


class Wait(NamedTuple):
    """One job's wait. `open`: it has neither started nor ended."""

    gpus: int
    slice_ms: Ms
    waited_ms: Ms
    open: bool


class ClassWaits(NamedTuple):
    """The waits of a class by nearest rank; None: it has no jobs."""

    name: str
    jobs: int
    never_started: int
    p50_ms: Ms | None
    p90_ms: Ms | None
    max_ms: Ms | None


def wait(job: AskedJob, cluster: str, now_ms: Ms) -> Wait | None:
    """What a job waited for a cluster; None: its wait is not this cluster's, or nobody's."""
    started = next((each for each in job.placings if each.started_at_ms is not None), None)
    started_ms = None if started is None else started.started_at_ms
    if job.end is not None and job.end.first_started_at_ms is not None:
        started_ms = job.end.first_started_at_ms
    where = started or (job.placings[0] if started_ms is not None and job.placings else None)
    if job.leaf is None or not (job.may_run_on(cluster) if where is None else where.cluster == cluster):
        return None
    until_ms = min((each for each in (started_ms, job.ended_at_ms) if each is not None), default=None)
    want = job.want
    waited_ms = max(0, (now_ms if until_ms is None else until_ms) - want.submitted_at_ms)
    return Wait(want.gpus, want.slice_ms, waited_ms, until_ms is None)


class Waiting:
    """Collects waits, one by one."""

    def __init__(self) -> None:
        self._waited: dict[str, list[Ms]] = defaultdict(list)
        self._open: dict[str, int] = defaultdict(int)

    def add(self, each: Wait) -> None:
        """Add one job's wait to the classes that it belongs to."""
        for name, belongs in SIZE_CLASSES.items():
            if belongs(each.gpus, each.slice_ms):
                self._waited[name].append(each.waited_ms)
                self._open[name] += each.open

    def classes(self) -> tuple[ClassWaits, ...]:
        """Every class, in their order."""
        return tuple(self._class(name) for name in SIZE_CLASSES)

    def _class(self, name: str) -> ClassWaits:
        waited = sorted(self._waited[name])
        if not waited:
            return ClassWaits(name, 0, 0, None, None, None)
        return ClassWaits(name, len(waited), self._open[name], nearest_rank(waited, 50), nearest_rank(waited, 90), waited[-1])
