"""Real commands on this machine: how they start, what they are told, how they end, and that nothing of them is left."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from allmende.agent.process import records
from allmende.agent.process.surroundings import WARNING
from allmende.agent.sdk.backend import CannotStart, Cause
from allmende.agent.sdk.warnings import WARNINGS_MS, Warned
from allmende.chassis.clock import RealClock, ScaledClock
from allmende.proto.units import DAY_MS, MINUTE_MS
from tests.agent.machine import attempt, cgroups_of, job, machine, marked, needs_linux, until

pytestmark = needs_linux

EVICTION = Cause("eviction", "p1", 5_000)
# A daemon by the book, that does not even keep its environment.
AWAY = "import os, sys, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(300)"


@pytest.mark.parametrize(
    ("sentence", "script", "how", "code"),
    [
        ("0 is finished", "true", "finished", 0),
        ("another code is the job's failure", "exit 3", "failed", 3),
        ("a signal that is not ours is the job's failure", "kill -9 $$", "failed", 137),
    ],
)
async def test_how_a_command_ends(sentence: str, script: str, how: str, code: int, tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        await made.start(script)
        left = await made.exit()
        assert (left.how, left.exit_code) == (how, code), sentence
        assert list((tmp_path / "attempts").iterdir()) == [], "its end is said: nothing more is kept of it"


async def test_a_command_that_does_not_exist_fails_as_in_a_shell_and_says_so_in_its_log(tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        await made.start("exec no-such-program")
        assert (await made.exit()).exit_code == 127
        assert "no-such-program" in made.log()


async def test_a_command_knows_its_place(tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        await made.start("echo $CUDA_VISIBLE_DEVICES $ALLMENDE_REPLICA/$ALLMENDE_REPLICAS $ALLMENDE_JOB; pwd", replicas=2)
        await made.exit()
        assert made.log(replica=0) == f"0,1 0/2 {job()}\n/\n"
        assert made.log(replica=1) == f"2,3 1/2 {job()}\n/\n"


async def test_held_time_is_measured_by_a_clock_that_nobody_sets(tmp_path: Path) -> None:
    class Set(RealClock):
        """A wall clock that somebody sets."""

        ahead_ms = 0

        def now_ms(self) -> int:
            return super().now_ms() + self.ahead_ms

    for ahead_ms in (DAY_MS, -DAY_MS):
        clock = Set()
        folder = tmp_path / str(ahead_ms)
        folder.mkdir()
        async with machine(folder, clock) as made:
            started_at_ms = await made.start("sleep 0.3")
            clock.ahead_ms = ahead_ms
            seen = await made.backend.observe(clock.now_ms())
            assert 0 <= (seen[attempt()].held_ms or 0) < MINUTE_MS
            left = await made.exit()
            assert left.held_ms is not None
            # Started a little before the reading that the agent takes when the keeper has said so.
            assert 200 <= left.held_ms < MINUTE_MS
            assert left.ended_at_ms == started_at_ms + left.held_ms


async def test_an_evicted_command_leaves_in_its_grace_or_is_killed(tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        await made.start("trap 'echo saving; exit 143' TERM; echo up; sleep 300 & wait")
        await until(lambda: made.log() == "up\n", "it is up")
        await made.backend.terminate(attempt(), EVICTION)
        left = await made.exit()
        assert (left.how, left.exit_code, made.log()) == ("signalled", 143, "up\nsaving\n")
        await made.start("trap '' TERM; echo up; while :; do sleep 300; done", 2)
        await until(lambda: made.log(2) == "up\n", "it is up")
        await made.backend.terminate(attempt(2), EVICTION)
        await made.backend.observe(0)
        assert len(made.said.exits) == 1, "it does not listen"
        await made.backend.kill(attempt(2), EVICTION)
        left = await made.exit(2)
        assert (left.how, left.exit_code) == ("signalled", 137)


async def test_a_command_that_finishes_in_its_grace_has_finished(tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        await made.start("trap 'exit 0' TERM; echo up; sleep 300 & wait")
        await until(lambda: made.log() == "up\n", "it is up")
        await made.backend.terminate(attempt(), EVICTION)
        assert (await made.exit()).how == "finished"


@pytest.mark.parametrize("with_cgroups", [True, False])
async def test_what_forks_away_is_gone_when_the_end_is_said(with_cgroups: bool, tmp_path: Path) -> None:
    word = f"away-{os.getpid()}-{with_cgroups}"
    script = f'env -i {sys.executable} -c "{AWAY}" {word}; sleep 0.2; echo left'
    async with machine(tmp_path, with_cgroups=with_cgroups) as made:
        await made.start(script)
        left = await made.exit()
        assert made.log() == "left\n"
        assert (left.how, marked(word)) == ("finished", [])
        assert "left behind" in left.detail
        assert cgroups_of(attempt()) == []


@pytest.mark.parametrize("with_cgroups", [True, False])
async def test_a_killed_keeper_takes_its_command_with_it(with_cgroups: bool, tmp_path: Path) -> None:
    word = f"orphan-{os.getpid()}-{with_cgroups}"
    async with machine(tmp_path, with_cgroups=with_cgroups) as made:
        await made.start(f"setsid sh -c 'sleep 300; : {word}' & echo up; sleep 300; : {word}")
        await until(lambda: len(marked(word)) == 2, "it runs")
        (keeper,) = marked(f"{tmp_path}/attempts")
        os.kill(keeper, signal.SIGKILL)
        left = await made.exit()
        assert (left.how, left.exit_code, left.detail) == ("failed", 137, "its keeper was killed from outside")
        await until(lambda: not marked(word), "nothing is left")


async def test_a_replica_that_fails_takes_its_gang_and_one_that_finishes_does_not(tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        await made.start("test $ALLMENDE_REPLICA = 0 && exit 5; sleep 300", replicas=2)
        left = await made.exit()
        assert (left.how, left.exit_code) == ("failed", 5)
        await made.start("test $ALLMENDE_REPLICA = 0 && exit 0; sleep 0.3; exit 0", 2, replicas=2)
        left = await made.exit(2)
        assert left.how == "finished"
        assert (left.held_ms or 0) >= 200


async def test_a_touched_checkpoint_file_is_saved_progress(tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        script = "echo up; read go < /dev/null; sleep 0.2; touch $ALLMENDE_CHECKPOINT_FILE; echo saved; sleep 300"
        started_at_ms = await made.start(script)
        now_ms = RealClock().now_ms
        assert (await made.backend.observe(now_ms()))[attempt()].checkpoint_at_ms is None, "nothing is saved yet"
        checkpoint = tmp_path / "jobs" / job() / "checkpoint"
        # `touch` makes the file first and sets its time then.
        await until(lambda: "saved" in made.log(), "it has saved")
        saved_at_ms = (await made.backend.observe(now_ms()))[attempt()].checkpoint_at_ms
        assert saved_at_ms is not None
        assert started_at_ms <= saved_at_ms <= now_ms()
        await made.backend.terminate(attempt(), EVICTION)
        assert (await made.exit()).checkpoint_at_ms == saved_at_ms
        assert checkpoint.exists(), "the next attempt finds it"


async def test_notice_comes_before_the_slice_ends_by_file_and_by_signal(tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        script = "trap 'echo usr1; cat $ALLMENDE_NOTICE_FILE; exit 0' USR1; echo up; while :; do sleep 0.05; done"
        await made.start(script, slice_ms=1_000, ALLMENDE_NOTICE_SIGNAL="USR1")
        (folder,) = (tmp_path / "attempts").iterdir()
        record = records.read(folder)
        assert record is not None
        assert (record.notice_before_ms, record.notice_order) == (100, "1")
        left = await made.exit()
        assert (left.how, (left.held_ms or 0) >= 800) == ("finished", True)
        assert made.log().splitlines() == ["up", "usr1", "slice: it ends 1000 ms after the start"]


@pytest.mark.parametrize("before_ms", WARNINGS_MS)
async def test_a_warning_reaches_the_command_by_its_file(before_ms: int, tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        script = "while [ ! -e $ALLMENDE_WARNING_FILE ]; do sleep 0.05; done; cat $ALLMENDE_WARNING_FILE"
        await made.start(script, slice_ms=before_ms + 1)
        assert (await made.exit()).how == "finished"
        assert msgspec.json.decode(made.log(), type=Warned).warning_ms == before_ms


async def test_on_a_fast_clock_a_command_hears_of_both_in_order(tmp_path: Path) -> None:
    clock = ScaledClock(0, 0, 600)
    async with machine(tmp_path, clock) as made:
        script = f"until grep -s {WARNINGS_MS[-1]}, $ALLMENDE_WARNING_FILE; do sleep 0.01; done"
        await made.start(script, slice_ms=WARNINGS_MS[0] + MINUTE_MS)
        assert (await made.exit()).how == "finished", "the first has given way to the second"


async def test_an_agent_that_is_started_again_does_not_warn_twice(tmp_path: Path) -> None:
    warning = tmp_path / "attempts" / attempt() / WARNING
    async with machine(tmp_path) as made:
        await made.start("sleep 300", slice_ms=WARNINGS_MS[-1] + 1)
        await until(warning.exists, "the warning comes")
        said = warning.stat()
    async with machine(tmp_path) as made:
        assert attempt() in await made.backend.observe(RealClock().now_ms()), "the next agent has taken it over, and looked"
        now = warning.stat()
        assert (now.st_ino, now.st_mtime_ns) == (said.st_ino, said.st_mtime_ns)
        await made.backend.kill(attempt(), EVICTION)
        await made.exit()


async def test_a_notebook_saves_itself_as_the_manual_shows(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[2] / "clients/agent/README.md").read_text()
    (loop,) = [part.split("```")[0] for part in manual.split("```sh\n")[1:] if "ALLMENDE_WARNING_FILE" in part.split("```")[0]]
    script = loop.replace("sleep 5", "sleep 0.05").replace("./save-notebook", "echo saved; exit 0")
    async with machine(tmp_path) as made:
        await made.start(script, slice_ms=WARNINGS_MS[-1] + 1)
        assert (await made.exit()).how == "finished"
        assert made.log() == "saved\n", "a loop that saw nothing would run for ever"


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that strangers may pass. Not below pytest's, which each session that starts closes to them again."""
    with TemporaryDirectory(prefix="allmende-machine-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run jobs as somebody else")
async def test_a_strangers_command_runs_as_the_stranger(passable: Path) -> None:
    async with machine(passable) as made:
        await made.start("id -un; touch $ALLMENDE_CHECKPOINT_FILE && echo saved; kill -9 $PPID || echo kept", user="nobody")
        left = await made.exit()
        assert left.how == "finished", made.log()
        assert made.log().split()[:2] == ["nobody", "saved"]
        assert made.log().endswith("kept\n"), "it may not kill its keeper"
        with pytest.raises(CannotStart, match="no account"):
            await made.start("true", 2, user="no-such-person")
        assert list((passable / "attempts").iterdir()) == []


async def test_the_next_agent_takes_over_what_runs_and_what_has_ended(tmp_path: Path) -> None:
    async with machine(tmp_path) as first:
        started_at_ms = await first.start("echo up; sleep 300")
        await first.start("exit 4", 2)
        await until(lambda: first.log() == "up\n", "it is up")
    async with machine(tmp_path) as second:
        running = {each.launch.attempt: each for each in second.running}
        taken = running[attempt(1)]
        assert (taken.started_at_ms, taken.launch.epoch, taken.launch.job) == (started_at_ms, 7, job(1))
        assert taken.launch.places[0].devices == (0, 1)
        if attempt(2) in running:
            assert (await second.exit(2)).exit_code == 4
        else:
            assert [each.exit_code for each in first.said.exits] == [4]
        await second.backend.terminate(attempt(1), EVICTION)
    async with machine(tmp_path) as third:
        if third.running:
            assert third.running[0].cause == EVICTION
            left = await third.exit(1)
        else:
            left = await second.exit(1)
        assert (left.how, left.exit_code) == ("signalled", 143)


async def test_a_machine_that_was_started_anew_has_lost_what_ran_and_what_was_only_being_started_is_ended(tmp_path: Path) -> None:
    async with machine(tmp_path) as first:
        await first.start("sleep 300")
        await first.start("sleep 300", 2)
        for number, change in ((1, {"boot": "another"}), (2, {"started_at_ms": None})):
            folder = tmp_path / "attempts" / attempt(number)
            record = records.read(folder)
            assert record is not None
            records.write(folder, msgspec.structs.replace(record, **change))
    async with machine(tmp_path) as second:
        assert [each.attempt for each in second.died] == [attempt(1)]
        assert second.running == []
        assert not (tmp_path / "attempts" / attempt(2)).exists()
        assert marked(f"{tmp_path}/attempts/{attempt(2)}") == []
        record = records.read(tmp_path / "attempts" / attempt(1))
        assert record is not None
        records.write(tmp_path / "attempts" / attempt(1), msgspec.structs.replace(record, started_at_ms=None))
    async with machine(tmp_path):
        assert list((tmp_path / "attempts").iterdir()) == []
