"""How a command fails: one sentence that says what to do, and an exit code that programs can rely on."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes, the same for every command."""

    OK = 0
    REFUSED = 1
    """A service said no; the sentence says why."""
    USAGE = 2
    """The command line or a file is wrong; nothing was sent."""
    STALE = 3
    """Somebody else changed the same thing first; read it again."""
    UNREACHABLE = 69
    """Nobody answered (sysexits.h: EX_UNAVAILABLE)."""
    UNWRITTEN = 74
    """What was asked is done, but the answer could not be written (sysexits.h: EX_IOERR)."""
    UNREAD = 141
    """Nobody read the output of `allmende run` to its end (a shell's word for SIGPIPE)."""


class CommandFailed(Exception):
    """Ends the command. `code` is a stable word for programs, where a service gave one."""

    def __init__(self, exit_code: Exit, sentence: str, code: str = "") -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self.code = code
