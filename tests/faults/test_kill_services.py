"""Services that are killed with -9 in mid-demo and started again: the same final equalities.

When each is killed is a fact, not a time: after so many more lines in the cluster's own log (starts, ends, signals), so many that
a seed chose. The demo's own supervisor starts what died.
"""

import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from allmende.proto.subjects import SERVICES
from tests.system.demonstration import Demo, demo

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc"),
    pytest.mark.timeout(400),  # a demo, and a start of every service twice; see PATIENCE_S
]

# The load goes on until all was done; then Ctrl-C ends it.
FOR_EVER = 3_600
# Events in the cluster's log between two kills: at 256 GPUs and rate 360 some 30 a second.
FEW, MANY = 5, 40


async def kill(it: Demo, names: Sequence[str]) -> None:
    """Kill these services now, all at once."""
    pids = {name: it.service(name) for name in names}
    for name, pid in pids.items():
        assert pid is not None, f"{name} does not run"
        it.port_file(name).unlink()
        os.kill(pid, signal.SIGKILL)


async def alive_again(it: Demo, names: Sequence[str]) -> None:
    """Until each has been started again and is up."""
    for name in names:
        await it.until(it.port_file(name).exists, f"{name} is up again")


async def life_goes_on(it: Demo, events: int) -> None:
    """Until so many more things have happened on the cluster."""
    wanted = it.truths() + events
    await it.until(lambda: it.truths() >= wanted, f"{events} more starts and ends")


async def test_each_service_is_killed_in_mid_demo_and_started_again(tmp_path: Path) -> None:
    chance = random.Random(5)
    async with demo(tmp_path, seconds=FOR_EVER, gpus=256, seed=5) as it:
        await life_goes_on(it, 50)
        for name in [*chance.sample(SERVICES, len(SERVICES)), *chance.sample(SERVICES, len(SERVICES))]:
            await kill(it, [name])
            await alive_again(it, [name])
            await life_goes_on(it, chance.randint(FEW, MANY))
        it.interrupt()
        figures = await it.judged()
        assert "still has open attempts" not in it.screen
        for name in SERVICES:
            assert it.screen.count(f"{name} ended (killed by SIGKILL) and is started again") == 2
        assert figures["jobs_finished"] > 0


async def test_all_services_are_killed_at_once(tmp_path: Path) -> None:
    chance = random.Random(6)
    async with demo(tmp_path, seconds=FOR_EVER, gpus=256, seed=6) as it:
        await life_goes_on(it, 50)
        for _round in range(2):
            await kill(it, SERVICES)
            await alive_again(it, SERVICES)
            await life_goes_on(it, chance.randint(FEW, MANY))
        it.interrupt()
        figures = await it.judged()
        assert "still has open attempts" not in it.screen
        assert figures["jobs_finished"] > 0


async def test_killed_while_the_books_are_closed(tmp_path: Path) -> None:
    async with demo(tmp_path, seconds=FOR_EVER, gpus=256, seed=7) as it:
        await life_goes_on(it, 100)
        it.interrupt()
        await it.until(lambda: "closing the books" in it.screen, "the load is being stopped")
        await kill(it, ["ledger", "admission"])
        await it.judged()
