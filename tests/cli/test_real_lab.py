"""`allmende up --real` and `allmende run`: real commands of this machine under the real services, killed in between.

The tests of this module share the lab and run in the order in which they stand.
"""

import asyncio
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from allmende.chassis.clock import RealClock
from allmende.chassis.entropy import RandomIds
from allmende.cli import session
from allmende.cli.commands.run import Output, _Waiting, exit_code
from allmende.cli.commands.submit import hand_in, job_of
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.place import Place
from allmende.cli.session import Session
from allmende.proto import subjects
from allmende.proto.ledger import LedgerState, LedgerStateQuery, Posting, PostingsPage, PostingsQuery
from allmende.proto.user import Payload
from tests.cli.terminal import ALLMENDE, Terminal, environment
from tests.servers import Lab

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the process agent looks after processes with Linux's means"),
    # Ten processes start, and two are killed and started again.
    pytest.mark.timeout(120),
]

GPUS = 4
# What an attempt may be charged beyond what its own command saw of it: a shell's start, and a keeper that looks once more.
ALLOWANCE_MS = 1_000
# /proc/uptime is CLOCK_BOOTTIME: the truth, in a job's own words.
BREATHE = 'cut -d" " -f1 /proc/uptime; sleep 0.05'


@pytest.fixture(scope="module", autouse=True)
def a_terminal_that_hangs_up() -> Iterator[None]:
    """Tests that were started with nohup hand it on: `allmende run` would think that it was meant."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path_factory.mktemp("real") / "lab")
    try:
        terminal.up("--real", "--gpus", str(GPUS))
        terminal.wait_for(lambda: terminal.type("nodes", "--json").json["nodes"], "the machine is a node")
        yield terminal
    finally:
        terminal.kill_all()


def test_a_command_runs_as_it_would_without_us(terminal: Terminal) -> None:
    said = terminal.type("run", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; pwd; echo no >&2; exit 3")
    assert said == (3, f"0\n{Path.cwd()}\nno\n", "")
    assert terminal.type("run", "--gpus", "2", "--json", "--", "true").err.count('"exit_code":0') == 1
    assert terminal.type("run", "--", "no-such-program-at-all").code == 127


def test_each_job_of_an_array_finds_its_number(terminal: Terminal, tmp_path: Path) -> None:
    script = f"echo $ALLMENDE_ARRAY_SIZE $ALLMENDE_ARRAY_JOB > {tmp_path}/$ALLMENDE_ARRAY_INDEX"
    said = terminal.type("submit", "--array", "5", "--name", "sweep", "--", "sh", "-c", script)
    first = said.out[:26]
    assert (said.code, "the first of 5 jobs" in said.out) == (0, True), said
    done = ("jobs", "--array", first[-8:], "--state", "ended", "--json")
    terminal.wait_for(lambda: len(terminal.type(*done).json["jobs"]) == 5, "all have ended")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {str(index): f"5 {first}\n" for index in range(5)}
    assert "sweep [4 of 5]" in terminal.type("jobs", "--array", first[-8:]).out
    assert "had already ended" in terminal.type("cancel", "--array", first).out
    held = terminal.type("submit", "--array", "3", "--gpus", "4", "--name", "later", "--", "sleep", "60").out[:26]
    assert "of the array" in terminal.type("hold", "--array", held).out
    assert "3 jobs of the array" in terminal.type("cancel", "--array", held).out


def test_a_refused_command_says_why(terminal: Terminal) -> None:
    said = terminal.type("run", "--gpus", "5", "--", "true")
    assert (said.code, "never_fits" in said.err or "never fit" in said.err) == (1, True), said
    assert "no_covering_budget" in terminal.type("run", "--slice", "1h", "--", "true").err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGHUP, 130)])
def test_ctrl_c_ends_the_command_and_says_so(terminal: Terminal, number: int, code: int) -> None:
    script = "trap 'echo bye; exit 143' TERM; echo up; while :; do sleep 0.05; done"
    command = [*ALLMENDE, "run", "--lab", str(terminal.folder), "--", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        running.send_signal(number)
        out, err = running.communicate(timeout=30)
    # The shell may say that its `sleep` was terminated, too.
    assert (running.returncode, out.endswith("bye\n"), "cancelled" in err) == (code, True, True)


def test_a_command_whose_output_nobody_takes_is_stopped(terminal: Terminal) -> None:
    """It would hold its GPUs for nobody: a closed pipe ends it as it does in a shell, and a full disk with a sentence."""
    talks = ("sh", "-c", "while echo y; do sleep 0.05; done")
    command = [*ALLMENDE, "run", "--lab", str(terminal.folder), "--", *talks]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "y\n"
        running.stdout.close()
        err = running.stderr.read()
    assert (running.returncode, "was told to stop" in err, "Traceback" in err) == (Exit.UNREAD, True, False), err
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), timeout=30, check=False)
    assert (done.returncode, "was told to stop" in done.stderr, "Traceback" in done.stderr) == (Exit.UNWRITTEN, True, False), done
    terminal.wait_for(lambda: not terminal.type("jobs", "--state", "running", "--json").json["jobs"], "they have left their GPUs")


def test_ctrl_c_is_not_lost_in_an_outage(terminal: Terminal) -> None:
    command = [*ALLMENDE, "run", "--lab", str(terminal.folder), "--", "sh", "-c", "echo up; sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        terminal.kill("allmende.admission")
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=50)
    assert (running.returncode, "cancelled" in err) == (130, True), err


async def test_an_order_to_stop_that_nobody_hears_is_given_up(lab: Lab) -> None:
    """`timeout 60 allmende run ...` of a lab that is gone comes to an end, and says that the job may not."""
    bus = await lab.bus("user", "bob")
    place = Place(nats_url=lab.nats_url, seed_file=None, user="bob", role="user")
    waiting = _Waiting(Session(place, bus, RealClock(), RandomIds()), "01m8x6y8fma5va3njr4546tjbq", stop_for_s=0.2)
    waiting.interrupt()
    with pytest.raises(CommandFailed, match="may run on: stop it with `allmende cancel") as failed:
        await asyncio.wait_for(waiting.until_ended(), 20)
    assert failed.value.exit_code == Exit.UNREACHABLE


async def test_an_end_that_was_missed_is_told_with_what_is_stored_of_it(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    async with session.opened(terminal.folder) as opened:
        body = job_of(opened, {"gpus_per_replica": 1, "slice_ms": 0, "payload": payload("exit 9")})
        await hand_in(opened, body, opened.now_ms())
        ran = await asyncio.wait_for(_Waiting(opened, body.job).until_ended(), 40)
    assert (ran.outcome, ran.exit_code) == ("failed", 1)
    assert "its exit code was missed: failed with exit code 9" in capsys.readouterr().err


class Books(NamedTuple):
    """The ledger's postings, by attempt."""

    state: LedgerState
    postings: dict[str, list[Posting]]


async def submit(terminal: Terminal, jobs: list[dict[str, object]]) -> list[str]:
    made = []
    async with session.opened(terminal.folder) as opened:
        for job in jobs:
            body = job_of(opened, {"gpus_per_replica": 1, "slice_ms": 0} | job)
            answer = await hand_in(opened, body, opened.now_ms())
            assert answer.answer == "queued", answer
            made.append(body.job)
    return made


async def books(terminal: Terminal) -> Books:
    found: dict[str, list[Posting]] = defaultdict(list)
    async with session.opened(terminal.folder) as opened:
        state = await opened.ask(subjects.LEDGER_STATE, LedgerStateQuery(cluster="c1"), LedgerState)
        after: int | None = 0
        while after is not None:
            page = await opened.ask(subjects.POSTINGS, PostingsQuery(cluster="c1", after=after), PostingsPage)
            for posting in page.postings:
                found[posting.attempt].append(posting)
            after = page.next_after
    return Books(state, found)


def payload(script: str) -> Payload:
    return Payload(command=("sh", "-c", script), environment={"PATH": "/usr/bin:/bin"}, directory="/")


def ended(terminal: Terminal, jobs: list[str]) -> bool:
    listed = terminal.type("jobs", "--limit", "100", "--state", "ended", "--json").json["jobs"]
    return set(jobs) <= {each["job"] for each in listed}


def state(terminal: Terminal, job: str) -> str:
    return str(terminal.type("why", job, "--json").json["job"]["state"])


def logs(terminal: Terminal, job: str) -> list[Path]:
    return sorted((terminal.folder / "machine" / "logs" / job).glob("*.log"))


def test_the_books_equal_the_truth_whatever_is_killed(terminal: Terminal, tmp_path: Path) -> None:
    """Unallocated jobs fill the machine, an allocated one evicts them, agent and bus are killed with -9, many short ones follow."""
    go = tmp_path / "go"
    waits = payload(f"while [ ! -e {go} ]; do {BREATHE}; done; exit 6")
    fillers = asyncio.run(submit(terminal, [{"payload": waits, "resumable": False}] * GPUS))
    terminal.wait_for(lambda: all(logs(terminal, job) for job in fillers), "the machine is full")
    (owed,) = asyncio.run(submit(terminal, [{"payload": waits, "gpus_per_replica": 2, "budget": "vision", "slice_ms": 60_000}]))
    # Killed before it has said so, the agent undoes a start, and the command begins anew: see decision 0024.
    terminal.wait_for(lambda: state(terminal, owed) == "running", "it makes room for itself")
    before = logs(terminal, owed)[0].stat().st_size
    terminal.kill("allmende.agent.process")
    terminal.kill("nats-server")
    terminal.wait_for(lambda: logs(terminal, owed)[0].stat().st_size > before, "it runs on without its agent")
    terminal.wait_for(lambda: "process ended" in terminal.log.read_text(), "the agent is started again")
    short = payload(f"for i in 1 2 3 4 5; do {BREATHE}; done")
    shorts = asyncio.run(submit(terminal, [{"payload": short, "budget": "vision", "slice_ms": 1_000}] * 20))
    go.touch()
    jobs = [*fillers, owed, *shorts]
    terminal.wait_for(lambda: ended(terminal, jobs), "all have ended")
    terminal.wait_for(lambda: asyncio.run(books(terminal)).state.open_attempts == 0, "the books are closed")
    found = asyncio.run(books(terminal)).postings
    assert [len(logs(terminal, job)) for job in (owed, *shorts)] == [1] * 21, "nothing ran twice"
    outcomes = {each["job"]: each["outcome"] for each in terminal.type("jobs", "--limit", "100", "--json").json["jobs"]}
    evicted = [job for job in fillers if outcomes[job] == "preempted"]
    assert len(evicted) >= 2
    assert {outcomes[job] for job in fillers} <= {"preempted", "failed"}
    assert outcomes[owed] == "failed"
    assert {outcomes[job] for job in shorts} == {"finished"}
    for job in jobs:
        for log in logs(terminal, job):
            check_books(found[log.name.split(".")[0]], log, 2 if job == owed else 1)
    assert not [line for line in terminal.processes() if "keeper.py" in line], "nothing is left"


def check_books(postings: list[Posting], log: Path, gpus: int) -> None:
    """The postings of an attempt are one unbroken span, as long as its command lived."""
    # A shell that is told to go says "Terminated".
    breaths = [round(float(word) * 1_000) for word in log.read_text().split() if word[0].isdigit()]
    spans = sorted((posting.from_ms, posting.to_ms) for posting in postings)
    assert [end for _, end in spans[:-1]] == [begin for begin, _ in spans[1:]], "without gap or overlap"
    assert {posting.gpus for posting in postings} == {gpus}
    charged_ms = spans[-1][1] - spans[0][0]
    lived_ms = breaths[-1] - breaths[0]
    # The agent takes the time of the start when all keepers have said so: the command may have breathed already.
    assert lived_ms - 500 <= charged_ms <= lived_ms + ALLOWANCE_MS, (charged_ms, lived_ms)


def test_with_the_lab_its_jobs_end(terminal: Terminal) -> None:
    (job,) = asyncio.run(submit(terminal, [{"payload": payload("sleep 600")}]))
    terminal.wait_for(lambda: [line for line in terminal.processes() if "keeper.py" in line], "it runs")
    assert terminal.end(signal.SIGINT) == 0
    assert terminal.processes() == [], job


@pytest.mark.parametrize(
    ("outcome", "code", "expected"),
    [
        ("finished", 0, 0),
        ("failed", 9, 9),
        ("failed", None, 1),
        ("cancelled", 143, 130),
        ("preempted", 143, 75),
        ("max_runtime", 1, 124),
    ],
)
def test_exit_codes(outcome: str, code: int | None, expected: int) -> None:
    assert exit_code(outcome, code) == expected  # type: ignore[arg-type]  # of the table


def test_output_is_copied_once_in_the_order_of_attempts(tmp_path: Path) -> None:
    seen: list[bytes] = []
    output = Output(tmp_path, "j", seen.append)
    output.copy()
    assert not output.seen
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "b.0.log").write_bytes(b"second ")
    (tmp_path / "j" / "a.0.log").write_bytes(b"x" * 100_000)
    output.copy()
    with (tmp_path / "j" / "b.0.log").open("ab") as log:
        log.write(b"more")
    output.copy()
    output.copy()
    assert b"".join(seen) == b"x" * 100_000 + b"second more"
    assert max(len(piece) for piece in seen) <= 65_536
