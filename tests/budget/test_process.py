"""The budget service as a process of its own: started, killed, started again, ended."""

import asyncio
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allmende.chassis.errors import Transient
from allmende.chassis.ports import Bus
from allmende.chassis.rpc import ask
from allmende.proto import subjects
from allmende.proto.budget import ChildShare, SetShares, TreePage, TreeQuery
from allmende.proto.tree_file import write_tree
from tests.budget.builders import tree
from tests.servers import Lab

TREE = tree("lab", "a < lab 40%", "b < lab 60%")
WAIT_S = 30.0


async def start(env: Mapping[str, str]) -> asyncio.subprocess.Process:
    """`python -m allmende.budget`."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "allmende.budget", env=env, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )


async def asked(bus: Bus, row: subjects.Request, request: Any) -> Any:
    """Ask as olga until somebody answers."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await ask(bus, row, "olga", request, timeout_s=1.0)
            except Transient:
                await asyncio.sleep(0.05)


async def test_a_killed_service_starts_where_it_was_and_ends_cleanly_when_told(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(write_tree(TREE))
    env = {**lab.env("budget"), "ALLMENDE_BUDGET_TREE_FILE": str(file), "ALLMENDE_BUDGET_OPERATORS": '["olga"]'}
    olga = await lab.bus("operator")
    first = await start(env)
    try:
        page: TreePage = await asked(olga, subjects.TREE, TreeQuery())
        assert (page.revision, page.author, len(page.budgets)) == (1, "budget-file", 3)
    finally:
        first.kill()
        await first.wait()
    second = await start(env)
    try:
        children = (ChildShare(budget="a", share_ppm=0), ChildShare(budget="b", share_ppm=None))
        reply = await asked(
            olga, subjects.SET_SHARES, SetShares(parent="lab", children=children, expected_revision=1, reason="a quiet month")
        )
        assert reply.committed.revision == 2
        second.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_S):
            assert await second.wait() == 0
    finally:
        if second.returncode is None:
            second.kill()
            await second.wait()


async def test_a_faulty_first_tree_ends_the_start_with_every_fault(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text("[lab]\n[lab.a]\nshare = '70%'\n[lab.b]\nshare = '70%'\nboss = 'ada'\n")
    process = await start({**lab.env("budget"), "ALLMENDE_BUDGET_TREE_FILE": str(file)})
    async with asyncio.timeout(WAIT_S):
        _, errors = await process.communicate()
    assert process.returncode == 78
    assert b"unknown key 'boss'" in errors
    assert b"sum to 140%" in errors
