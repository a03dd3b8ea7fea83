"""The open loop: a trace's jobs at the trace's own instants, moved to the clock. Pure."""

from collections import deque
from random import Random
from typing import Protocol

from allmende.agent.workload.jobs import submission
from allmende.agent.workload.lab import Lab
from allmende.agent.workload.loop import Request
from allmende.agent.workload.philly import Submitter, TraceJob, replay
from allmende.proto.ids import ENTROPY_BYTES, make_id
from allmende.proto.units import Ms


class Source(Protocol):
    """Where submissions come from: the closed loop or a trace."""

    @property
    def open(self) -> frozenset[str]:
        """Jobs that were submitted and have not ended."""

    def ended(self, job: str) -> bool:
        """A job ended or was refused; False when it was not open."""

    def wanted(self, now_ms: Ms) -> list[Request]:
        """What to submit now."""


class Replay:
    """A trace from `trace_from_ms` on; that instant is `starts_at_ms` of the clock."""

    def __init__(self, lab: Lab, jobs: list[TraceJob], gpus: int, seed: int, trace_from_ms: Ms, starts_at_ms: Ms) -> None:
        left, later = replay(jobs, gpus, trace_from_ms)
        self._shift_ms = starts_at_ms - trace_from_ms
        # What was left over comes first, in the order in which it was submitted.
        self._coming = deque([job._replace(submitted_at_ms=trace_from_ms) for job in left] + later)
        self._submitter = Submitter(lab, seed)
        self._chance = Random(f"{seed}/ids")
        self._open: set[str] = set()
        self._number = 0

    @property
    def open(self) -> frozenset[str]:
        """Jobs that were submitted and have not ended."""
        return frozenset(self._open)

    def ended(self, job: str) -> bool:
        """A job ended; nobody asks for another."""
        known = job in self._open
        self._open.discard(job)
        return known

    def wanted(self, now_ms: Ms) -> list[Request]:
        """The rows that are due by now."""
        requests: list[Request] = []
        while self._coming and self._coming[0].submitted_at_ms + self._shift_ms <= now_ms:
            shape, team, user, allocated = self._submitter.shape(self._coming.popleft())
            self._number += 1
            job = make_id(now_ms, self._chance.randbytes(ENTROPY_BYTES))
            budget = team.budget if allocated else None
            body = submission(shape, user=user, job=job, budget=budget, name=f"{team.budget}-{self._number}")
            self._open.add(job)
            requests.append(Request(body, team.budget, shape.gpus, shape.debug))
        return requests
