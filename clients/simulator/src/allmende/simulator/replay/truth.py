"""What was: a lab's past as a history of the simulator, so that the same figures are taken of it as of a replay. Decides nothing.

Instants stay the lab's own. What no service keeps is not made up: how much work an eviction lost, when it was ordered and for whom,
what a device did, what each node was.
"""

from collections.abc import Iterable, Iterator

from allmende.proto.admission import PastAttempt, PastJob
from allmende.proto.history import LabHistory
from allmende.proto.placement import NodeReplicas
from allmende.proto.units import Ms
from allmende.simulator.model import Cluster, History, Job, Life, NodeChange, Run, RunEnd, TreeChange, Window

NAME = "as it was"


def window(past: LabHistory) -> Window:
    """What is measured: what was asked about, but not before the lab had its first job."""
    first_ms = min((job.submitted_at_ms for job in past.jobs), default=past.begin_ms)
    begin_ms = max(past.begin_ms, first_ms)
    return Window(begin_ms, max(past.from_ms, begin_ms), past.to_ms)


def here(past: LabHistory) -> list[PastJob]:
    """The jobs that ran on the cluster, with their attempts there, and those that ran nowhere and may run there."""
    return [own for job in past.jobs if (own := _here(job, past)) is not None]


def _here(job: PastJob, past: LabHistory) -> PastJob | None:
    known = [each for each in job.attempts if each.granted_at_ms < past.to_ms]
    attempts = [each for each in known if each.cluster == past.cluster]
    if not attempts and (known or (job.clusters and past.cluster not in job.clusters)):
        return None
    fields = {name: getattr(job, name) for name in PastJob.__struct_fields__}
    ordered = sorted(attempts, key=lambda each: (each.granted_at_ms, each.attempt))
    return PastJob(**fields | {"attempts": tuple(ordered)})


def held_ms(attempt: PastAttempt, from_ms: Ms, to_ms: Ms) -> Ms:
    """How long the attempt occupied its GPUs within `[from_ms, to_ms)`."""
    if attempt.started_at_ms is None:
        return 0
    until_ms = to_ms if attempt.ended_at_ms is None else min(attempt.ended_at_ms, to_ms)
    return max(0, until_ms - max(attempt.started_at_ms, from_ms))


def spec(job: PastJob, submitted_at_ms: Ms, runtime_ms: Ms) -> Job:
    """What was asked for, with how long it works."""
    return Job(
        job=job.job,
        submitted_at_ms=submitted_at_ms,
        user=job.user,
        budget=job.budget,
        replicas=job.replicas,
        gpus_per_replica=job.gpus_per_replica,
        runtime_ms=runtime_ms,
        slice_ms=job.slice_ms,
        resumable=job.resumable,
        priority=job.priority,
        kind=job.kind,
        max_runtime_ms=job.max_runtime_ms,
        gpu_model=job.gpu_model,
        may_run_unallocated=job.may_run_unallocated,
        fails=job.outcome == "failed",
    )


def history(past: LabHistory, cluster: Cluster, jobs: Iterable[PastJob]) -> History:
    """What was. `jobs` as `here` gives them; the trees are those that were in force, the capacity that of the ledger's books."""
    span = window(past)
    lives: dict[str, Life] = {}
    runs: list[Run] = []
    for job in jobs:
        lives[job.job] = _life(job, past.to_ms)
        runs += [_run(job, each, past.to_ms) for each in job.attempts]
    return History(
        policy=NAME,
        cluster=cluster,
        window=span,
        trees=[TreeChange(tree.from_ms, tree.budgets) for tree in past.trees],
        lives=lives,
        runs=sorted(runs, key=lambda run: (run.ended_at_ms, run.attempt)),
        nodes=list(_capacity(past)),
        standings=[],
        rooms=[],
        promises=[],
        reached_ms=past.to_ms,
    )


def _life(job: PastJob, to_ms: Ms) -> Life:
    over = job.ended_at_ms is not None and job.ended_at_ms < to_ms
    starts = [each.started_at_ms for each in job.attempts if each.started_at_ms is not None and each.started_at_ms < to_ms]
    return Life(
        job=spec(job, job.submitted_at_ms, sum(held_ms(each, 0, to_ms) for each in job.attempts)),
        submitted_at_ms=job.submitted_at_ms,
        leaf=job.attempts[-1].budget if job.attempts else None,
        first_started_at_ms=min(starts, default=None),
        ended_at_ms=job.ended_at_ms if over else None,
        end=job.outcome if over else None,
        evictions=sum(_end(each, to_ms) == "evicted" for each in job.attempts),
        attempts=len(job.attempts),
    )


def _run(job: PastJob, attempt: PastAttempt, to_ms: Ms) -> Run:
    started = attempt.started_at_ms is not None and attempt.started_at_ms < to_ms
    return Run(
        attempt=attempt.attempt,
        job=job.job,
        leaf=attempt.budget,
        placement=tuple(NodeReplicas(part.node, part.replicas) for part in attempt.placement),
        gpus_per_replica=job.gpus_per_replica,
        slice_ms=attempt.slice_ms,
        granted_at_ms=attempt.granted_at_ms,
        started_at_ms=attempt.started_at_ms if started else None,
        protected_until_ms=attempt.protected_until_ms if started else None,
        ordered_at_ms=None,
        claimant=None,
        ended_at_ms=to_ms if attempt.ended_at_ms is None else min(attempt.ended_at_ms, to_ms),
        end=_end(attempt, to_ms),
    )


def _end(attempt: PastAttempt, to_ms: Ms) -> RunEnd:
    if attempt.ended_at_ms is None or attempt.ended_at_ms >= to_ms:
        return "still_running"
    # An outcome that this release does not know yet was no end of the work.
    return _ENDS.get(attempt.outcome or "stopped", "stopped")


_ENDS: dict[str, RunEnd] = {
    "finished": "finished",
    "failed": "failed",
    "evicted": "evicted",
    "stopped": "stopped",
    "never_started": "never_started",
    "node_lost": "node_lost",
}


def _capacity(past: LabHistory) -> Iterator[NodeChange]:
    """Healthy GPUs of the whole cluster in each step of the books, to the nearest GPU."""
    for bucket in past.books:
        length_ms = min(past.step_ms, past.to_ms - bucket.from_ms)
        if length_ms > 0:
            yield NodeChange(bucket.from_ms, past.cluster, (2 * bucket.available_gpu_ms + length_ms) // (2 * length_ms))
