"""The demo as a person starts it, short: it judges itself, ends by itself or by Ctrl-C, and leaves nothing behind.

How good its figures are is for the bench (`./dev bench demo`): a short run begins with an empty machine.
"""

import sys
from pathlib import Path

import pytest

from tests.system.demonstration import MUST_BE_ZERO, PHILLY, demo, processes_of, until_gone

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc"),
    pytest.mark.timeout(330),  # real servers, ten processes and a real load; see PATIENCE_S
]


async def test_it_runs_judges_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with demo(tmp_path, seconds=12, gpus=256, seed=3) as it:
        figures = await it.judged()
        assert (figures["seed"], figures["seconds"], figures["rate"]) == (3, 12, 360)
        assert figures["jobs_submitted"] >= figures["jobs_started"] >= figures["jobs_finished"] > 0
        assert figures["occupancy"] > 0
        assert len(figures["teams"]) == 15
        assert 0 < sum(team["effective_share_ppm"] for team in figures["teams"]) <= 1_000_000
        assert all(name.replace("_", " ").replace("gpu ms", "(GPU-ms)") in it.screen for name in MUST_BE_ZERO)


async def test_ctrl_c_in_mid_run_ends_it_as_cleanly(tmp_path: Path) -> None:
    async with demo(tmp_path, seconds=600, gpus=64, seed=4) as it:
        await it.until(lambda: it.truths() > 30, "jobs run")
        it.interrupt()
        figures = await it.judged()
        assert figures["jobs_started"] > 0
        assert "Promises (each must be 0)" in it.screen


async def test_ctrl_c_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    async with demo(tmp_path, seconds=600, gpus=64) as it:
        await it.until(lambda: it.service("ledger") is not None, "the first services start")
        it.interrupt()
        await it.ended()
        assert "nothing to judge" in it.screen
        assert not it.json_file.exists()


async def test_killed_without_warning_it_leaves_nothing_behind_either(tmp_path: Path) -> None:
    async with demo(tmp_path, seconds=600, gpus=64) as it:
        await it.until(lambda: it.truths() > 10, "jobs run")
        assert len(processes_of(it.folder)) > 8, "servers, services, cluster and load run"
        it.process.kill()
        await it.process.wait()
        await until_gone(it.folder)


@pytest.mark.trace
@pytest.mark.skipif(not PHILLY.is_file(), reason="no Philly trace: it belongs in ../shared/traces beside the repository")
async def test_it_replays_a_real_trace(tmp_path: Path) -> None:
    async with demo(tmp_path, seconds=12, gpus=500, trace=PHILLY) as it:
        figures = await it.judged()
        assert figures["jobs_started"] > 0
        assert figures["occupancy"] > 0
