"""Builders for messages that the preemptor hears, and a way to hear them without a bus. Defaults suit most tests."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from allmende.chassis.db import Database
from allmende.chassis.fakes import CountingIds, ManualClock
from allmende.chassis.health import Health
from allmende.chassis.ports import Draft, Event
from allmende.preemptor.handlers.batch import Preemptor
from allmende.preemptor.handlers.drains import Drains
from allmende.preemptor.model import Policy
from allmende.preemptor.store import Store
from allmende.proto import admission, agent, budget, ledger
from allmende.proto.envelope import Envelope
from allmende.proto.message import Message
from allmende.proto.subjects import BY_MESSAGE, subject_of
from allmende.proto.tree import digest
from allmende.proto.units import HOUR_MS
from tests.preemptor.builders import ENTITLED, id_of

START_MS = 1_700_000_000_000
TREE = (
    budget.Budget(budget="org"),
    budget.Budget(budget="vision", parent="org", share_ppm=500_000),
    budget.Budget(budget="nlp", parent="org", share_ppm=500_000),
)
TYPES = {message.TYPE: message for message in BY_MESSAGE}


def tree(budgets: Sequence[budget.Budget] = TREE, revision: int = 1) -> list[Message]:
    """All messages of one revision, the last one completing it."""
    changes = [budget.BudgetChanged(budget=it.budget, revision=revision, definition=it) for it in budgets]
    complete = budget.RevisionComplete(
        revision=revision, effective_from_ms=START_MS, budgets=len(budgets), digest=digest(budgets), author="ann"
    )
    return [*changes, complete]


def standings(cluster: str = "c1", revision: int = 1, counted: int = 0, **hundredths: int) -> list[Message]:
    """Standings in hundredths; org, vision and nlp stand at 1.00, 0.62 and 1.31 unless said otherwise."""
    return [
        ledger.UsageStanding(
            cluster=cluster,
            budget=name,
            as_of_ms=START_MS,
            usage_revision=revision,
            tree_revision=1,
            counted_grants=counted,
            charged_gpu_ms=ratio * ENTITLED // 100,
            held_gpu_ms=0,
            entitlement_gpu_ms=ENTITLED,
            available_gpus=16,
        )
        for name, ratio in ({"org": 100, "vision": 62, "nlp": 131} | hundredths).items()
    ]


def node(name: str, gpus: int = 8, *, cluster: str = "c1", seq: int = 1, at_ms: int = START_MS) -> agent.NodeReported:
    """A node whose GPUs are all healthy."""
    return agent.NodeReported(cluster=cluster, node=name, at_ms=at_ms, seq=seq, installed_gpus=8, healthy_gpus=gpus)


def granted(
    number: int,
    nodes: Mapping[str, int],
    *,
    budget: str | None = "nlp",
    seq: int | None = None,
    cluster: str = "c1",
    hold: int = 0,
    claim: str | None = None,
    fence: int = 1,
) -> admission.JobGranted:
    """Attempt `number` of job `number + 1000`: one GPU a replica, `nodes` says how many where."""
    return admission.JobGranted(
        cluster=cluster,
        job=id_of(number + 1_000),
        attempt=id_of(number),
        user="bob",
        budget=budget,
        placement=tuple(admission.Placed(node=name, replicas=gpus) for name, gpus in nodes.items()),
        gpus_per_replica=1,
        slice_ms=HOUR_MS,
        hold_gpu_ms=hold,
        priority=0,
        kind="batch",
        resumable=True,
        max_runtime_ms=None,
        granted_at_ms=START_MS,
        grant_seq=number if seq is None else seq,
        fence=fence,
        tree_revision=1,
        usage_revision=1,
        claim=claim,
    )


def protected(
    number: int, until_ms: int = START_MS, *, budget: str | None = "nlp", cluster: str = "c1"
) -> admission.AttemptProtected:
    """The attempt's slice ends at an instant."""
    return admission.AttemptProtected(
        cluster=cluster,
        attempt=id_of(number),
        job=id_of(number + 1_000),
        budget=budget,
        started_at_ms=min(until_ms, START_MS) - HOUR_MS,
        protected_until_ms=until_ms,
    )


def ended(number: int, *, plan: str | None = None, cluster: str = "c1") -> agent.AttemptEnded:
    """The attempt has ended."""
    return agent.AttemptEnded(
        cluster=cluster, attempt=id_of(number), job=id_of(number + 1_000), ended_at_ms=START_MS, outcome="evicted", plan=plan
    )


def freed(number: int, nodes: Mapping[str, int], *, cluster: str = "c1") -> agent.GpuFreed:
    """The attempt has let go of GPUs."""
    gpus = tuple(agent.FreedGpus(node=name, gpus=count) for name, count in nodes.items())
    return agent.GpuFreed(cluster=cluster, attempt=id_of(number), freed_at_ms=START_MS, nodes=gpus)


def tick(name: str, saved: Mapping[int, int | None], *, cluster: str = "c1", at_ms: int = START_MS) -> agent.UsageTick:
    """A tick of a node; `saved` has the last checkpoint of replica 0 by attempt."""
    counters = tuple(
        agent.Counter(
            attempt=id_of(number),
            replica=0,
            epoch=1,
            seq=1,
            since_ms=at_ms,
            held_ms=0,
            used_gpu_ms=0,
            checkpoint_at_ms=checkpoint,
        )
        for number, checkpoint in saved.items()
    )
    return agent.UsageTick(cluster=cluster, node=name, at_ms=at_ms, counters=counters)


def raised(
    number: int = 1,
    *,
    budget: str = "vision",
    replicas: int = 1,
    gpus: int = 8,
    newest: int = 0,
    fence: int = 1,
    cluster: str = "c1",
    hold: int = 0,
    usage_revision: int = 1,
    tree_revision: int = 1,
    avoid: tuple[str, ...] = (),
    reserved: tuple[str, ...] = (),
) -> admission.ClaimRaised:
    """Claim `number + 5000` for job `number + 6000`."""
    return admission.ClaimRaised(
        cluster=cluster,
        claim=id_of(number + 5_000),
        job=id_of(number + 6_000),
        user="ann",
        budget=budget,
        replicas=replicas,
        gpus_per_replica=gpus,
        gpu_model=None,
        slice_ms=HOUR_MS,
        hold_gpu_ms=hold,
        priority=0,
        raised_at_ms=START_MS,
        newest_grant_seq=newest,
        fence=fence,
        tree_revision=tree_revision,
        usage_revision=usage_revision,
        avoid_nodes=avoid,
        reserved_nodes=reserved,
    )


def withdrawn(number: int = 1, *, cluster: str = "c1") -> admission.ClaimWithdrawn:
    """Claim `number + 5000` is void."""
    return admission.ClaimWithdrawn(cluster=cluster, claim=id_of(number + 5_000), job=id_of(number + 6_000), reason="timed_out")


def read(draft: Draft) -> Any:
    """The body of a draft."""
    return msgspec.json.decode(draft.body, type=TYPES[draft.type])


class Ear:
    """The handler over a real database, fed by hand. Two of them on one database are two replicas."""

    def __init__(self, db: Database, clock: ManualClock, start: int = 1, policy: Policy | None = None) -> None:
        self.db = db
        self.clock = clock
        self._ids = CountingIds(start)
        self._seq = 0
        self.health = Health()
        self._handler = Preemptor(
            clock=clock,
            ids=self._ids,
            health=self.health,
            rows=lambda tx: Store(tx.connection),
            policy=policy or Policy(),
            silent_after_ms=30_000,
            drains=Drains(self._ids, policy or Policy()),
        )
        self.wake_at_ms: int | None = None

    def event(self, body: Message, *, sent_ago_ms: int = 0) -> Event:
        """A message as the worker would hand it over, with an id of its own."""
        self._seq += 1
        now_ms = self.clock.now_ms()
        envelope = Envelope(
            id=self._ids.new(now_ms),
            type=body.TYPE,
            version=body.VERSION,
            occurred_at_ms=now_ms,
            sent_at_ms=now_ms - sent_ago_ms,
            body=body,
        )
        return Event(envelope, subject_of(body), "ANY", self._seq, now_ms)

    async def hear(self, *bodies: Message, sent_ago_ms: int = 0) -> list[Any]:
        """One batch in one transaction; returns what the handler said."""
        events = [self.event(body, sent_ago_ms=sent_ago_ms) for body in bodies]
        async with self.db.transaction() as tx:
            outcome = await self._handler(tx, events)
            await tx.say(outcome.drafts)
        self.wake_at_ms = outcome.wake_at_ms
        return [read(draft) for draft in outcome.drafts]
