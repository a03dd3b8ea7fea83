"""How the command fails: sentences on stderr and an exit code for programs. Never a traceback for what somebody gave."""

from collections.abc import Mapping, Sequence
from enum import IntEnum

from allmende.simulator.inputs.faults import Fault


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    USAGE = 2
    """The command line or a file is wrong; nothing ran."""
    FAULT = 70
    """A rule of ours is at fault, not the input (sysexits.h: EX_SOFTWARE)."""
    OUTPUT = 74
    """The run is over, but what it should leave could not be written (sysexits.h: EX_IOERR)."""
    SIGNAL = 128
    """With the signal's number added: stopped; 130 is Ctrl-C."""


class CommandFailed(Exception):
    """Ends the command. `sentences` go to stderr, one a line."""

    def __init__(self, exit_code: int, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.exit_code = exit_code
        self.sentences = sentences


class Asked:
    """Collects what is wrong with a command line, so that all of it is said at once."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def add(self, option: str, sentence: str) -> None:
        """One more fault of an option."""
        self.faults.append(f"{option}: {sentence}")

    def check(self) -> None:
        """Go on only without a fault.

        Raises:
            CommandFailed: there are some.
        """
        if self.faults:
            raise CommandFailed(Exit.USAGE, *self.faults)


def of_files(faults: Sequence[Fault], counts: Mapping[str, int], *, may_skip: bool) -> CommandFailed:
    """The faults of files, and how many more there are. `may_skip`: `--skip-bad` was not given and could help."""
    sentences = [str(fault) for fault in faults]
    unnamed = sum(counts.values()) - len(faults)
    if unnamed > 0:
        sentences.append(f"... and {unnamed:,} more; the first {len(faults)} are named")
    # A place within a line: the fault of a row, and the rest of the file may be good.
    if may_skip and any(fault.line > 1 and not fault.file.endswith(".toml") for fault in faults):
        sentences.append("with --skip-bad, rows at fault are left out and counted")
    return CommandFailed(Exit.USAGE, *sentences)
