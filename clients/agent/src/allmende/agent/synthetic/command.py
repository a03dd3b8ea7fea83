"""The one program that a synthetic cluster can run, and how its command line is read. Pure and strict.

    synthetic-job --runtime-ms N [--checkpoint-ms N] [--startup-ms N] [--crash-after-ms N] [--save-on-sigterm] [--ignore-sigterm]

Any other program ends as a shell would end it, with exit code 127; a command line that cannot be read with exit code 2.
"""

from collections.abc import Sequence
from typing import NamedTuple

from allmende.proto.units import DAY_MS, Ms

PROGRAM = "synthetic-job"
NOT_FOUND = 127
BAD_USAGE = 2
# Loading code and data, once an attempt: jobs of a few GPUs need seconds. Billed like all held time, but not progress.
DEFAULT_STARTUP_MS: Ms = 10_000
# A longer number is a slip of the pen: ten years, as for every span of the protocol.
LONGEST_MS: Ms = 10 * 366 * DAY_MS

_LENGTHS = {"--runtime-ms", "--checkpoint-ms", "--startup-ms", "--crash-after-ms"}
_SWITCHES = {"--save-on-sigterm", "--ignore-sigterm"}


class Command(NamedTuple):
    """How a job behaves. Lengths are clock time in milliseconds.

    `runtime_ms` is productive time over all attempts of the job, `checkpoint_ms` how often it saves (None: never),
    `crash_after_ms` the productive time at which it fails.
    """

    runtime_ms: Ms
    checkpoint_ms: Ms | None = None
    startup_ms: Ms = DEFAULT_STARTUP_MS
    crash_after_ms: Ms | None = None
    save_on_sigterm: bool = False
    ignore_sigterm: bool = False

    def line(self) -> tuple[str, ...]:
        """The command line that `parse` reads back."""
        words = [PROGRAM, "--runtime-ms", str(self.runtime_ms)]
        if self.checkpoint_ms is not None:
            words += ["--checkpoint-ms", str(self.checkpoint_ms)]
        if self.startup_ms != DEFAULT_STARTUP_MS:
            words += ["--startup-ms", str(self.startup_ms)]
        if self.crash_after_ms is not None:
            words += ["--crash-after-ms", str(self.crash_after_ms)]
        words += ["--save-on-sigterm"] * self.save_on_sigterm + ["--ignore-sigterm"] * self.ignore_sigterm
        return tuple(words)


class Unrunnable(NamedTuple):
    """A command line that ends at once, with this exit code and sentence."""

    exit_code: int
    sentence: str


def parse(words: Sequence[str]) -> Command | Unrunnable:
    """Read a command line. Unknown, repeated or incomplete options are refused, never guessed.

    The sentences are heard by everybody, so they repeat nothing of what the job runs but our own words.
    """
    program = words[0] if words else ""
    if program != PROGRAM:
        return Unrunnable(NOT_FOUND, f"command not found: a synthetic cluster runs only {PROGRAM}")
    lengths: dict[str, Ms] = {}
    switches: set[str] = set()
    rest = iter(words[1:])
    for word in rest:
        if word in lengths or word in switches:
            return Unrunnable(BAD_USAGE, f"{word} is given twice")
        if word in _SWITCHES:
            switches.add(word)
        elif word in _LENGTHS:
            value = next(rest, "")
            if not (value.isascii() and value.isdigit() and int(value) <= LONGEST_MS):
                return Unrunnable(BAD_USAGE, f"{word} needs whole milliseconds")
            lengths[word] = int(value)
        else:
            return Unrunnable(BAD_USAGE, f"{PROGRAM} has no such option: it takes {', '.join(sorted(_LENGTHS | _SWITCHES))}")
    if "--runtime-ms" not in lengths:
        return Unrunnable(BAD_USAGE, "--runtime-ms is missing")
    if lengths.get("--checkpoint-ms") == 0:
        return Unrunnable(BAD_USAGE, "--checkpoint-ms must be above 0; leave it out for a job that never saves")
    return Command(
        runtime_ms=lengths["--runtime-ms"],
        checkpoint_ms=lengths.get("--checkpoint-ms"),
        startup_ms=lengths.get("--startup-ms", DEFAULT_STARTUP_MS),
        crash_after_ms=lengths.get("--crash-after-ms"),
        save_on_sigterm="--save-on-sigterm" in switches,
        ignore_sigterm="--ignore-sigterm" in switches,
    )
