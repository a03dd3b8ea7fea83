"""A lab as a person starts it: `allmende up` as a process, and commands as processes beside it. Waits for facts, with a bound."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE_S = 40.0
ALLMENDE = (sys.executable, "-m", "allmende.cli")

# Budgets of which mia manages some, and ada and bob charge one each. 5 % of vision is nobody's.
VISION = """
[lab]
[lab.vision]
share = "35%"
managers = ["mia"]
[lab.vision.detection]
share = "35%"
members = ["ada"]
[lab.vision.tracking]
share = "60%"
members = ["bob"]
[lab.tools]
share = "40%"
"""


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, f"no answer, exit code {self.code}: {self.err}"
        return json.loads(self.out)


def environment(user: str | None = None) -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if not key.startswith("ALLMENDE_")}
    return ours | ({"ALLMENDE_USER": user} if user else {})


class Terminal:
    """One folder with a lab, and a prompt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder.with_suffix(".log")

    def up(self, *options: str, more: Mapping[str, str] | None = None) -> None:
        """Start the lab; `more` is environment that a person has set."""
        with self.log.open("wb") as log:
            command = [*ALLMENDE, "up", "--lab", str(self.folder), *options]
            env = environment() | dict(more or {})
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        self.wait_for(lambda: "Ctrl-C stops it" in self.log.read_text() or self.process.poll() is not None, "up")  # type: ignore[union-attr]
        assert self.process.poll() is None, self.log.read_text()

    def end(self, number: int) -> int:
        """Send `up` a signal; returns its exit code once it is gone."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def type(self, *words: str, user: str | None = None) -> Said:
        """Run one command; `--lab` is put in before a `--`."""
        at = words.index("--") if "--" in words else len(words)
        command = [*ALLMENDE, *words[:at], "--lab", str(self.folder), *words[at:]]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(user), timeout=PATIENCE_S, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    def wait_for(self, fact: Callable[[], object], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not fact():
            assert time.monotonic() < until, f"not in {PATIENCE_S:.0f} s: {what}; {self.log.read_text()}"
            time.sleep(0.1)

    def processes(self) -> list[str]:
        """The command lines of all processes that know this folder, zombies aside."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    command = (entry / "cmdline").read_bytes()
                    known = command + (entry / "environ").read_bytes()
                except OSError:
                    continue
                if command and str(self.folder).encode() in known:
                    found.append(f"{entry.name} {command.replace(bytes(1), b' ').decode()}")
        return found

    @property
    def truth(self) -> str:
        """The log of the synthetic cluster."""
        return (self.folder / "truth.jsonl").read_text()

    def kill(self, word: str) -> None:
        """SIGKILL for those processes of this lab whose command line has a word."""
        for line in self.processes():
            if word in line:
                try:
                    os.kill(int(line.split()[0]), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def kill_all(self) -> None:
        """SIGKILL for everything of this lab at once."""
        self.kill("")
        if self.process is not None:
            self.process.wait(PATIENCE_S)
        self.wait_for(lambda: not self.processes(), "the killed are gone")


@contextmanager
def lab_with(folder: Path, tree: str, *people: str) -> Iterator[Terminal]:
    """A lab of 16 GPUs with these people and the budgets of a file; gone at the end, whatever happened."""
    file = folder / "tree.toml"
    file.write_text(tree)
    terminal = Terminal(folder / "lab")
    try:
        terminal.up(*(word for person in people for word in ("--people", person)), "--gpus", "16", "--budgets", str(file))
        yield terminal
    finally:
        terminal.kill_all()
