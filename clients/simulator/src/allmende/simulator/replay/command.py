"""What `allmende budgets replay` calls: a past and a proposal in, three columns out. Found by the entry point `allmende.replay`.

Never talks to a lab: everything comes in as a value.
"""

import errno
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from allmende.proto.budget import Budget
from allmende.proto.history import LabHistory
from allmende.simulator.command.failures import CommandFailed, Exit
from allmende.simulator.command.playing import play
from allmende.simulator.model import History
from allmende.simulator.policies.allmende import Allmende
from allmende.simulator.ports import Scenario
from allmende.simulator.replay import report
from allmende.simulator.replay.columns import AS_SERVICES, Replay, prepare, replay

# Chance decides only how long somebody takes to leave.
SEED = 1
# Through a pipe: wide enough for every table.
PIPE_WIDTH = 140


def run(past: LabHistory, proposal: Sequence[Budget], *, name: str, as_json: bool, page: Path | None) -> int:
    """Replay the past and print what comes out; returns the exit code.

    `name` is what the proposal is called; `page` is where the tables are written as HTML too.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter shows its number instead of ending the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    stopped: list[int] = []

    def played(scenario: Scenario, label: str) -> History | None:
        policy = Allmende(AS_SERVICES, scenario.cluster)
        done = play(scenario, policy, SEED, label, "the same command", bar=sys.stderr.isatty())
        if done.stopped is not None:
            stopped.append(done.stopped)
            return None
        return done.history

    try:
        found = replay(prepare(past), proposal, name, played)
        if found is None:
            typer.echo("stopped: nothing is said of half a replay", err=True)
            return Exit.SIGNAL + stopped[0]
        _say(found, as_json=as_json, page=page)
    except CommandFailed as failed:
        for sentence in failed.sentences:
            typer.echo(sentence, err=True)
        return failed.exit_code
    return Exit.OK


def _say(found: Replay, *, as_json: bool, page: Path | None) -> None:
    try:
        if as_json:
            typer.echo(report.encode(found).decode(), nl=False)
        else:
            report.render(found, Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False))
    except OSError as error:
        # A full disk behind `>`; a closed pipe is typer's own case.
        if error.errno == errno.EPIPE:
            raise
        raise CommandFailed(Exit.OUTPUT, f"standard output cannot be written: {error.strerror}") from None
    if page is not None:
        try:
            report.write(found, page)
        except OSError as error:
            raise CommandFailed(Exit.OUTPUT, f"{page} cannot be written: {error.strerror}") from None
