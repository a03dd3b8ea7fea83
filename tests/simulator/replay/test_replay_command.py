"""The simulator's part of the command: what it prints and returns, and that a signal leaves nothing half done."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from allmende.simulator.replay import command
from tests.simulator.replay.builders import busy, past, past_job, tree

PROPOSAL = tree(vision=10, tools=90)
PAST = past(past_job(1, (0, 60, "finished"), until=60))


def test_tables_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command.run(PAST, PROPOSAL, name="p.toml", as_json=False, page=tmp_path / "p.html") == 0
    said = capsys.readouterr()
    assert said.out.startswith("p.toml on c1, 8 GPUs")
    assert said.err == ""
    assert "p.toml on c1, 8 GPUs" in (tmp_path / "p.html").read_text()


def test_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(PAST, PROPOSAL, name="p.toml", as_json=True, page=None) == 0
    assert json.loads(capsys.readouterr().out)["proposal_file"] == "p.toml"


def test_a_page_that_cannot_be_written_is_said_after_the_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command.run(PAST, PROPOSAL, name="p.toml", as_json=False, page=tmp_path / "no" / "p.html") == 74
    said = capsys.readouterr()
    assert said.out.startswith("p.toml on c1")
    assert said.err == f"{tmp_path}/no/p.html cannot be written: No such file or directory\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_full_disk_behind_stdout_is_a_sentence(
    as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    # What could not be written is tried once more when the file is closed.
    with suppress(OSError), Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        code = command.run(PAST, PROPOSAL, name="p.toml", as_json=as_json, page=None)
        monkeypatch.undo()
    assert (code, capsys.readouterr().err) == (74, "standard output cannot be written: No space left on device\n")


@contextmanager
def pressed(number: int, fact: Callable[[], bool]) -> Iterator[None]:
    """Somebody who waits for a fact and then sends a signal: a thread of this process."""
    left = threading.Event()

    def wait() -> None:
        while not left.wait(0.001):
            if fact():
                os.kill(os.getpid(), number)
                return

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_its_own_code_and_half_a_replay_says_nothing(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = signal.getsignal(number)
    with pressed(number, lambda: signal.getsignal(number) != before):
        code = command.run(busy(1, 300), PROPOSAL, name="p.toml", as_json=True, page=tmp_path / "p.html")
    said = capsys.readouterr()
    assert (code, said.out, said.err) == (128 + number, "", "stopped: nothing is said of half a replay\n")
    assert signal.getsignal(number) == before
    assert list(tmp_path.iterdir()) == []
