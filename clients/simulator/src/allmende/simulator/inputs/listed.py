"""A list of jobs as a workload, and a scenario around it: what the files say becomes something that can be run.

Open loop: jobs come when the list says, however long the queue is. Real people submit less when they wait longer, so a history
replayed on a worse policy or a smaller cluster piles up more than it would have; the scenarios of `scenarios/` are closed loops.
Never changes a job but for its instant.
"""

from collections.abc import Iterable, Sequence

import msgspec

from allmende.proto.budget import Budget
from allmende.proto.units import DAY_MS, Ms, format_duration
from allmende.simulator.inputs.faults import Faults, Read
from allmende.simulator.inputs.jobs_file import SPAN_MOST_MS
from allmende.simulator.inputs.trees import with_members
from allmende.simulator.model import ORIGIN_MS, Cluster, Job, TreeChange, Window
from allmende.simulator.ports import Scenario

# A list that spans less is an exercise, not a history: what counts is until it is done.
_SHORT_MS: Ms = DAY_MS
_DRAIN_MOST_MS: Ms = 30 * DAY_MS


class Listed:
    """A workload that submits the jobs of a list at their instants, moved by `shift_ms`. Ties keep the order of the list."""

    def __init__(self, jobs: Iterable[Job], shift_ms: Ms = 0) -> None:
        self._jobs = sorted(jobs, key=lambda job: job.submitted_at_ms)
        self._shift_ms = shift_ms
        self._next = 0

    def due_ms(self) -> Ms | None:
        """When the next job comes; None after the last."""
        return self._jobs[self._next].submitted_at_ms + self._shift_ms if self._next < len(self._jobs) else None

    def submit(self, now_ms: Ms) -> Sequence[Job]:
        """The jobs of this instant."""
        # Moved one by one, when they are due: a second list of millions would double the memory.
        due: list[Job] = []
        while (at_ms := self.due_ms()) is not None and at_ms <= now_ms:
            due.append(msgspec.structs.replace(self._jobs[self._next], submitted_at_ms=now_ms))
            self._next += 1
        return due

    def ended(self, job: Job, now_ms: Ms) -> None:
        """Nothing: the list does not wait for anybody."""


def scenario_from(
    name: str,
    cluster: Cluster,
    jobs: Sequence[Job],
    budgets: Sequence[Budget],
    *,
    warm_up_ms: Ms = 0,
    drain_ms: Ms | None = None,
    add_members: bool = True,
    notes: Iterable[str] = (),
) -> Read[Scenario]:
    """The scenario of a list of jobs on a cluster, under one tree that is in force from the beginning.

    The clock begins at the first submission, which falls on `ORIGIN_MS` (so hours and weekdays of the history are not kept, the
    distances are). Measured is what comes after the warm-up, until `drain_ms` after the last submission. By default that is 0:
    after the last submission a queue only shrinks, which no lab's cluster ever does, and occupancy or debts of that time would
    say nothing about the policy. Only a list that spans less than a day is measured until its work could be done, which is the
    work of all jobs over all GPUs plus the longest runtime, at most 30 days.

    With `add_members` whoever charges a leaf in the list is made a member of it: a history says what people used, seldom what
    they were allowed to. Codes of faults: `no_jobs`, `span_too_long`, `warm_up_too_long`.
    """
    faults = Faults(name)
    if not jobs:
        faults.add(0, 0, "", "no_jobs", "there are no jobs to run")
        return faults.refused()
    first_ms = min(job.submitted_at_ms for job in jobs)
    span_ms = max(job.submitted_at_ms for job in jobs) - first_ms
    if span_ms > SPAN_MOST_MS:
        sentence = f"the jobs span {format_duration(span_ms)}, and at most ten years can be run: are all instants in seconds?"
        faults.add(0, 0, "submitted_at_s", "span_too_long", sentence)
        return faults.refused()
    said = list(notes)
    if drain_ms is None:
        drain_ms = _drain_ms(jobs, cluster) if span_ms < _SHORT_MS else 0
    length_ms = span_ms + drain_ms
    if warm_up_ms >= length_ms:
        sentence = (
            f"the warm-up of {format_duration(warm_up_ms)} leaves nothing of the {format_duration(length_ms)} to be measured; "
            "shorten it, or measure longer after the last job (--drain)"
        )
        faults.add(0, 0, "", "warm_up_too_long", sentence)
        return faults.refused()
    tree = tuple(budgets)
    if add_members:
        tree, added = with_members(tree, jobs)
        said.extend(added)
    after = f"{format_duration(drain_ms)} after the last submission" if drain_ms else "the last submission"
    said.append(f"open loop: jobs come when the list says; measured until {after}")
    return Read(
        Scenario(
            name=name,
            cluster=cluster,
            trees=(TreeChange(ORIGIN_MS, tree),),
            workload=Listed(jobs, ORIGIN_MS - first_ms),
            window=Window(ORIGIN_MS, ORIGIN_MS + warm_up_ms, ORIGIN_MS + length_ms),
            notes=tuple(said),
        )
    )


def _drain_ms(jobs: Sequence[Job], cluster: Cluster) -> Ms:
    work = sum(job.gpus * job.runtime_ms for job in jobs)
    return min(_DRAIN_MOST_MS, work // max(1, cluster.gpus) + max(job.runtime_ms for job in jobs))
