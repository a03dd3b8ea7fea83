"""A policy that decides nothing: it says at each instant what a test has written down, and keeps what it was told."""

from collections.abc import Mapping, Sequence

from allmende.proto.placement import NodeReplicas
from allmende.proto.units import MINUTE_MS, Ms
from allmende.simulator.model import Job, RunEnd, StandingSample, TreeChange
from allmende.simulator.ports import Action, Evict, Grant
from tests.simulator.policies.builders import at, minutes


class Script:
    """`says`: by minute, what to do then. `heard`: what it was told, as words and minutes, `decide` included."""

    name = "script"

    def __init__(self, says: Mapping[float, Sequence[Action]], protects: float = 0) -> None:
        self._says = {at(minute): list(actions) for minute, actions in says.items()}
        self._protects_ms = round(protects * MINUTE_MS)
        self.heard: list[tuple[object, ...]] = []

    def _note(self, now_ms: Ms, *words: object) -> None:
        self.heard.append((minutes(now_ms), *words))

    def tree(self, change: TreeChange) -> None:
        self._note(change.at_ms, "tree", len(change.budgets))

    def node(self, node: str, gpus: int, healthy: int, gpu_model: str | None, now_ms: Ms) -> None:
        self._note(now_ms, "node", node, healthy)

    def submitted(self, job: Job, now_ms: Ms) -> None:
        self._note(now_ms, "submitted", job.job)

    def started(self, attempt: str, now_ms: Ms) -> Ms:
        self._note(now_ms, "started", attempt)
        return now_ms + self._protects_ms

    def saves(self, attempt: str, every_ms: Ms, now_ms: Ms) -> None:
        self._note(now_ms, "saves", attempt, every_ms / MINUTE_MS)

    def ended(self, attempt: str, end: RunEnd, now_ms: Ms, saved_at_ms: Ms | None) -> None:
        self._note(now_ms, "ended", attempt, end, None if saved_at_ms is None else minutes(saved_at_ms))

    def due_ms(self) -> Ms | None:
        return min(self._says, default=None)

    def decide(self, now_ms: Ms) -> Sequence[Action]:
        self._note(now_ms, "decide")
        return self._says.pop(now_ms, [])

    def standings(self, now_ms: Ms) -> StandingSample:
        return StandingSample(now_ms, {})

    def waiting(self) -> tuple[int, int]:
        return 0, 0


def grant(attempt: str, job: str = "j", where: Mapping[str, int] | None = None, slice_minutes: float = 0) -> Grant:
    """By default one replica on the first node."""
    placement = tuple(NodeReplicas(node, replicas) for node, replicas in (where or {"n00": 1}).items())
    return Grant(attempt, job, None, placement, round(slice_minutes * MINUTE_MS))


def evict(attempt: str, grace: float = 2, claimant: str | None = None) -> Evict:
    """With a notice of so many minutes."""
    return Evict(attempt, round(grace * MINUTE_MS), claimant)
