"""One write that sets all 1,000 children of a parent in a tree of 10,000 budgets: what deciding it costs, and when readers have it.

The decision is the pure rule. The rest runs over a real NATS server and a real PostgreSQL on this machine: from the request until
the answer, and until another service has read the whole new revision. Beside it, in the same run, what the servers allow: as many
messages as the revision has, of the same size, published and read with nothing else around them.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path
from time import perf_counter

from allmende.budget.app import run
from allmende.budget.config import Settings
from allmende.budget.model import Asking, Intent, Tree
from allmende.budget.rules.trees import set_shares
from allmende.chassis.boot import Chassis
from allmende.chassis.entropy import RandomIds
from allmende.chassis.health import Health
from allmende.chassis.ports import Bus
from allmende.chassis.rpc import ask
from allmende.proto import subjects
from allmende.proto.budget import Budget, ChildShare, SetShares, TreePage, TreeQuery, WriteReply
from allmende.proto.envelope import decode
from allmende.proto.tree_file import write_tree
from tests.budget.reader import Reader
from tests.servers import Lab, start_session_postgres

CHILDREN, BUDGETS, ROUNDS = 1_000, 10_000, 5
OPERATOR = "grace"
PATIENCE_S = 60.0


def bench() -> dict[str, float]:
    """Milliseconds: medians of five writes each; the bounds are those of the order (50 ms, 1 s)."""
    folder = Path(tempfile.mkdtemp(prefix="allmende-bench-"))
    try:
        return {"decision_ms": _decision_ms(), "decision_ms_max": 50.0, **asyncio.run(_over_the_bus(folder))}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tree() -> list[Budget]:
    """A root, ten programmes of equal share, 1,000 projects below the first and 999 or so below each other one."""
    rows = [Budget(budget="lab")]
    rows += [Budget(budget=f"programme-{number}", parent="lab", share_ppm=100_000) for number in range(10)]
    rows += [Budget(budget=f"project-{number:05d}", parent="programme-0", share_ppm=1_000) for number in range(CHILDREN)]
    rest = BUDGETS - len(rows)
    rows += [Budget(budget=f"other-{number:05d}", parent=f"programme-{1 + number % 9}", share_ppm=500) for number in range(rest)]
    return rows


def _shares(round_: int) -> list[tuple[str, int]]:
    # Neighbours give and take, so that every child differs from the round before and the sum stays whole.
    step = 1 + round_ % 7
    return [(f"project-{number:05d}", 1_000 + (step if number % 2 else -step)) for number in range(CHILDREN)]


def _decision_ms() -> float:
    tree = Tree(1, {row.budget: row for row in _tree()})
    taken = []
    for round_ in range(ROUNDS):
        begun = perf_counter()
        verdict = set_shares(tree, Intent("mia", "a bench", 1), "programme-0", _shares(round_), 1, Asking("mia", operator=True))
        taken.append((perf_counter() - begun) * 1_000)
        assert hasattr(verdict, "changed"), verdict
    return round(sorted(taken)[ROUNDS // 2], 2)


async def _over_the_bus(folder: Path) -> dict[str, float]:
    postgres = await start_session_postgres(folder / "postgres")
    lab = Lab(folder / "lab", postgres)
    try:
        await lab.open()
        (folder / "tree.toml").write_text(write_tree(_tree()))
        settings = Settings(nats_url="unused", database_url="unused", operators=(OPERATOR,), tree_file=str(folder / "tree.toml"))
        bus, db = await lab.bus("budget"), await lab.database("budget")
        chassis = Chassis(settings, bus, db, lab.clock, RandomIds(), Health(), "bench")
        service = asyncio.get_running_loop().create_task(run(chassis, settings))
        try:
            return await _measured(lab, bus)
        finally:
            service.cancel()
            await asyncio.gather(service, return_exceptions=True)
    finally:
        await lab.close()
        await postgres.stop()


async def _measured(lab: Lab, bus: Bus) -> dict[str, float]:
    operator, ledger = await lab.bus("operator", OPERATOR), await lab.bus("ledger")
    heard = _Heard(ledger)
    async with asyncio.timeout(PATIENCE_S):
        await heard.until(1)
    answers, readable = [], []
    for round_ in range(ROUNDS):
        children = tuple(ChildShare(budget=name, share_ppm=ppm) for name, ppm in _shares(round_))
        request = SetShares(parent="programme-0", children=children, expected_revision=round_ + 1, reason="a bench")
        begun = perf_counter()
        reply = await ask(operator, subjects.SET_SHARES, OPERATOR, request, timeout_s=PATIENCE_S)
        answers.append((perf_counter() - begun) * 1_000)
        assert isinstance(reply, WriteReply)
        assert reply.committed, reply
        async with asyncio.timeout(PATIENCE_S):
            await heard.until(round_ + 2)
        readable.append((perf_counter() - begun) * 1_000)
    page = await ask(operator, subjects.TREE, OPERATOR, TreeQuery())
    assert isinstance(page, TreePage)
    ceiling = await _ceiling_ms(bus, heard)
    taken = sorted(readable)[ROUNDS // 2]
    return {
        "answer_ms": round(sorted(answers)[ROUNDS // 2], 1),
        "readable_ms": round(taken, 1),
        "readable_ms_max": 1_000.0,
        "same_messages_alone_ms": round(ceiling, 1),
        "readable_to_alone": round(taken / ceiling, 2),
    }


class _Heard:
    """Another service's reader of the tree."""

    def __init__(self, bus: Bus) -> None:
        self.subscription = bus.subscribe("TREE", "ledger")
        self.reader = Reader()
        self.last: list[tuple[str, bytes]] = []

    async def until(self, revision: int) -> None:
        """Read until a revision is whole; `last` are the messages of that time."""
        self.last = []
        while self.reader.revision < revision:
            deliveries = await self.subscription.pull(500, 1.0)
            for delivery in deliveries:
                self.last.append((delivery.subject, delivery.data))
                self.reader.hear(decode(delivery.data).body)
            await self.subscription.ack(deliveries)


async def _ceiling_ms(bus: Bus, heard: _Heard) -> float:
    """The last revision's messages once more, with new ids, published and read without a service or a database."""
    ids = RandomIds()
    again = [(subject, ids.new(1), data, None) for subject, data in heard.last]
    begun = perf_counter()
    results = await bus.publish_many(again)
    assert not any(results), [result for result in results if result][:1]
    left = len(again)
    async with asyncio.timeout(PATIENCE_S):
        while left > 0:
            deliveries = await heard.subscription.pull(500, 1.0)
            left -= len(deliveries)
            await heard.subscription.ack(deliveries)
    return (perf_counter() - begun) * 1_000
