"""What the services commit, in memory: `Store` of admission and `Rows` of the preemptor, frozen between two steps.

The decisions are the services' own. Only what PostgreSQL keeps is played here, with the conditions that its statements have.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from allmende.admission.model.books import Books, Dirty
from allmende.admission.model.values import Attempt, Claim, Cluster, Counted, Job, Node, Tree
from allmende.chassis.errors import StaleTerm
from allmende.preemptor import model as preemptor
from allmende.proto.standing import Standing
from allmende.proto.units import Ms

Frozen: TypeAlias = tuple[tuple[str, Any], ...]


def freeze(rows: Mapping[str, Any]) -> Frozen:
    """Rows in the order of their names, so that equal rows are equal states."""
    return tuple(sorted(rows.items()))


class Lab(NamedTuple):
    """What stays as it is: the tree, the nodes and the standings."""

    tree: Tree
    nodes: tuple[Node, ...]
    counted: tuple[Counted, ...]
    budgets: tuple[str, ...]
    """The tree's definitions, as JSON."""


class Admitted(NamedTuple):
    """What admission has committed."""

    jobs: Frozen = ()
    attempts: Frozen = ()
    claims: Frozen = ()
    clusters: Frozen = ()


class AdmissionRows:
    """`admission.ports.Store`, as far as the protocol needs it."""

    def __init__(self, lab: Lab, committed: Admitted) -> None:
        self._lab = lab
        self.jobs: dict[str, Job] = dict(committed.jobs)
        self.attempts: dict[str, Attempt] = dict(committed.attempts)
        self.claims: dict[str, Claim] = dict(committed.claims)
        self.clusters: dict[str, Cluster] = dict(committed.clusters)

    def committed(self) -> Admitted:
        """After the commit."""
        return Admitted(freeze(self.jobs), freeze(self.attempts), freeze(self.claims), freeze(self.clusters))

    async def load(self, _tx: object) -> Books:
        """Everything that has not ended."""
        books = Books()
        books.load_tree((), None, self._lab.tree)
        jobs = [each for each in self.jobs.values() if each.state != "ended"]
        books.load(jobs, self.attempts.values(), self.claims.values(), self._lab.nodes, self.clusters.values(), self._lab.counted)
        return books

    async def write(self, _tx: object, dirty: Dirty) -> None:
        """Each job's row only over the version it was decided on; ended attempts and claims are not kept."""
        for job in dirty.jobs:
            before = self.jobs.get(job.job)
            if job.version != (0 if before is None else before.version) + 1:
                raise StaleTerm(f"job {job.job} is not as it was")
            # What is kept in memory alone is not committed.
            self.jobs[job.job] = replace(job, idled=False, reserved=None)
        for attempt in dirty.attempts:
            self.attempts[attempt.attempt] = attempt
            if attempt.state == "ended":
                del self.attempts[attempt.attempt]
        for claim in dirty.claims:
            self.claims[claim.claim] = claim
            if claim.ended is not None:
                del self.claims[claim.claim]
        for cluster in dirty.clusters:
            self.clusters[cluster.cluster] = cluster

    async def owners(self, _tx: object, _jobs: Sequence[str]) -> dict[str, Any]:
        """Nobody submits here."""
        return {}


class Known(NamedTuple):
    """An attempt as the preemptor has it; without `grant` only its protection or its end was heard."""

    grant: preemptor.GrantRow | None = None
    held: Frozen = ()
    freed: Frozen = ()
    started_at_ms: Ms | None = None
    protected_until_ms: Ms | None = None
    ended: bool = False
    leaving: bool = False
    overdue: bool = False


class Asked(NamedTuple):
    """A claim as the preemptor has it."""

    claim: preemptor.Claim
    message: str
    stream_seq: int
    state: str = "waiting"


class Heard(NamedTuple):
    """What the preemptor has committed."""

    fence: int = 0
    grants_heard: int = 0
    attempts: Frozen = ()
    claims: Frozen = ()
    ended_claims: tuple[str, ...] = ()
    promises: Frozen = ()
    timers: Frozen = ()
    departures: Frozen = ()


class PreemptorRows:
    """`preemptor.ports.Rows`, as far as the protocol needs it. `ends_claims`: False plants a fault."""

    def __init__(self, lab: Lab, committed: Heard, *, ends_claims: bool = True) -> None:
        self._lab, self._ends_claims = lab, ends_claims
        self._fence, self._grants = committed.fence, committed.grants_heard
        self.attempts: dict[str, Known] = dict(committed.attempts)
        self.claims: dict[str, Asked] = dict(committed.claims)
        self._ended = set(committed.ended_claims)
        self.promises: dict[str, Frozen] = dict(committed.promises)
        self._timers: dict[str, preemptor.Expired] = dict(committed.timers)
        self._departures: dict[str, preemptor.Departure] = dict(committed.departures)

    def committed(self) -> Heard:
        """After the commit."""
        return Heard(
            self._fence,
            self._grants,
            freeze(self.attempts),
            freeze(self.claims),
            tuple(sorted(self._ended)),
            freeze(self.promises),
            freeze(self._timers),
            freeze(self._departures),
        )

    async def learn(self, heard: preemptor.Heard, _now_ms: Ms, _rate: int) -> None:
        """Write what a batch says, as the statements `add_grants` to `end_claims` do."""
        self._fence = max([self._fence, *heard.fences.values()])
        for (_cluster, name), row in heard.grants.items():
            known = self.attempts.get(name, Known())
            if known.grant is None:
                nodes = {node: gpus for (_, of, node), gpus in heard.held.items() if of == name}
                self.attempts[name] = known._replace(grant=row, held=() if known.ended else freeze(nodes))
        seqs = {known.grant.grant_seq for known in self.attempts.values() if known.grant is not None}
        while self._grants + 1 in seqs:
            self._grants += 1
        for (_cluster, name), word in heard.protected.items():
            known = self.attempts.get(name, Known())
            if known.protected_until_ms is None:
                known = known._replace(started_at_ms=word.started_at_ms, protected_until_ms=word.protected_until_ms)
                self.attempts[name] = known
                if not known.ended:
                    self._timers[name] = preemptor.Expired(word.cluster, name, word.job, word.budget, word.protected_until_ms)
        for (_cluster, name, node), gpus in heard.freed.items():
            freed = dict(self.attempts[name].freed) if name in self.attempts else {}
            if gpus > freed.get(node, 0) and name in self.attempts and node in dict(self.attempts[name].held):
                self.attempts[name] = self.attempts[name]._replace(freed=freeze(freed | {node: gpus}))
        for _cluster, name in heard.ended:
            self.attempts[name] = self.attempts.get(name, Known())._replace(ended=True, held=(), freed=())
            self._timers.pop(name, None)
            self._departures.pop(name, None)
        for (_cluster, name), claim in heard.claims.items():
            if name not in self._ended:
                self.claims.setdefault(name, Asked(claim.claim, claim.message, claim.stream_seq))
        for _cluster, name in heard.ended_claims if self._ends_claims else ():
            self._ended.add(name)
            self.promises.pop(name, None)
            if name in self.claims and self.claims[name].state in ("waiting", "planned"):
                self.claims[name] = self.claims[name]._replace(state="closed")

    async def clusters_with_waiting_claims(self) -> set[str]:
        return {each.claim.cluster for each in self.claims.values() if each.state == "waiting"}

    async def clusters_with_cordons(self) -> set[str]:
        return set()

    async def drains(self, _cluster: str, _nodes: object = None) -> list[preemptor.Drain]:
        return []

    async def tree_in_force(self) -> tuple[int, str] | None:
        return self._lab.tree.revision, "the only one"

    async def definitions(self, _revision: int) -> list[str]:
        return list(self._lab.budgets)

    async def waiting_claims(self, _cluster: str) -> list[preemptor.Waiting]:
        waiting = sorted((each.stream_seq, each.claim.claim) for each in self.claims.values() if each.state == "waiting")
        return [preemptor.Waiting(self.claims[name].claim, self.claims[name].message) for _seq, name in waiting]

    async def progress(self, _cluster: str, tree_revision: int | None) -> preemptor.Progress:
        return preemptor.Progress(self._grants, self._fence, tree_revision, 1, len(self._lab.nodes))

    async def facts(self, _cluster: str, _silent_after_ms: Ms) -> preemptor.Facts:
        live = {name: known for name, known in self.attempts.items() if known.grant is not None and not known.ended}
        promised: dict[str, int] = {}
        for promise in self.promises.values():
            for node, gpus in promise:
                promised[node] = promised.get(node, 0) + gpus
        return preemptor.Facts(
            tuple(preemptor.Node(node.node, node.healthy, None, True) for node in self._lab.nodes),
            tuple(_attempt(name, known) for name, known in sorted(live.items())),
            tuple(
                preemptor.Granted(known.grant.budget, known.grant.hold_gpu_ms, known.grant.grant_seq)
                for known in live.values()
                if known.grant is not None and known.grant.budget is not None
            ),
            promised,
            {
                each.budget: preemptor.Counted(
                    Standing(each.used_gpu_ms, each.entitlement_gpu_ms),
                    each.counted_grants,
                )
                for each in self._lab.counted
            },
            tuple((each.claim.budget, each.claim.hold_gpu_ms) for each in self.claims.values() if each.state == "planned"),
        )

    async def settle(self, claim: preemptor.Claim, state: str) -> None:
        if self.claims[claim.claim].state == "waiting":
            self.claims[claim.claim] = self.claims[claim.claim]._replace(state=state)

    async def keep_plan(self, _plan: str, claim: preemptor.Claim, planned: preemptor.Planned, *_more: object) -> None:
        self.promises[claim.claim] = freeze({it.node: it.replicas * claim.gpus_per_replica for it in planned.placement})
        for victim in planned.victims:
            name = victim.attempt.attempt
            self.attempts[name] = self.attempts[name]._replace(leaving=True)

    async def take_due(self, now_ms: Ms, _most: int) -> list[preemptor.Expired]:
        due = sorted(
            (each for each in self._timers.values() if each.due_at_ms <= now_ms), key=lambda it: (it.due_at_ms, it.attempt)
        )
        for each in due:
            del self._timers[each.attempt]
        return due

    async def expect(self, departures: Sequence[preemptor.Departure]) -> None:
        for each in departures:
            self._departures.setdefault(each.attempt, each)

    async def take_overdue(self, now_ms: Ms, _most: int, _silent_after_ms: Ms) -> list[preemptor.Stuck]:
        late = sorted(each for each in self._departures.values() if each.due_at_ms <= now_ms)
        found = []
        for each in late:
            del self._departures[each.attempt]
            self.attempts[each.attempt] = self.attempts[each.attempt]._replace(overdue=True)
            held = _attempt(each.attempt, self.attempts[each.attempt]).held
            if held:
                found.append(preemptor.Stuck(each, held, ()))
        return found

    async def next_due(self) -> Ms | None:
        timers = [each.due_at_ms for each in self._timers.values()] + [each.due_at_ms for each in self._departures.values()]
        return min(timers, default=None)


def _attempt(name: str, known: Known) -> preemptor.Attempt:
    assert known.grant is not None
    freed = dict(known.freed)
    return preemptor.Attempt(
        attempt=name,
        job=known.grant.job,
        budget=known.grant.budget,
        held=tuple((node, gpus - freed.get(node, 0)) for node, gpus in known.held if gpus > freed.get(node, 0)),
        replicas=known.grant.replicas,
        gpus_per_replica=known.grant.gpus_per_replica,
        priority=known.grant.priority,
        started_at_ms=known.started_at_ms,
        protected_until_ms=known.protected_until_ms,
        leaving=known.leaving,
        overdue=known.overdue,
    )
