"""`allmende budgets replay`: the lab's own past under a proposed tree, beside what was.

Gathers the past from the services, asking only; the simulator, where it is installed, does the rest. Never writes to the lab.
"""

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from allmende.cli import session
from allmende.cli.commands.tree import read_file
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption
from allmende.proto.budget import Budget
from allmende.proto.history import LabHistory
from allmende.proto.units import DAY_MS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "allmende.replay"
PACKAGE: Final = "allmende-simulator"
DEFAULT_DAYS: Final = 30
# As long as admission keeps what has ended.
DAYS_MOST: Final = 90


def replay(
    proposal: Annotated[
        Path, typer.Option("--proposal", metavar="FILE", help="A whole tree as a budget file (TOML).", show_default=False)
    ],
    days: Annotated[
        int | None,
        typer.Option("--days", min=1, max=DAYS_MOST, help=f"How far back (default {DEFAULT_DAYS}).", show_default=False),
    ] = None,
    cluster: Annotated[str | None, session.name_option("Which cluster, where the lab has several.", "CLUSTER")] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FILE", help="Keep the past that was gathered, for --history.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option("--history", metavar="FILE", help="Take the past from a file of --keep; asks no lab.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the tables as a page too.")] = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a proposed tree would have made of the lab's own past. Changes nothing.

    Three columns: as it was, the rules on today's tree, the rules on the proposal. Guide: docs/guides/simulate-replay.md.
    """
    if history is not None and (given := _only_for_a_lab(days, cluster, keep)):
        raise typer.BadParameter(f"{given} is for a past that is gathered now; leave it out", param_hint="--history")
    tree = _proposal(proposal)
    program = _program(_found())
    for target in (keep, html):
        if target is not None and (wrong := _no_place(target, [each for each in (proposal, history) if each is not None])):
            session.fail(CommandFailed(Exit.USAGE, f"{target} cannot be written: {wrong}"))
    past = _read(history) if history is not None else _gathered(lab, cluster, days or DEFAULT_DAYS)
    if keep is not None:
        _keep(past, keep)
    if not past.jobs:
        sentence = f"no job lived on {past.cluster} in that time: there is nothing to replay"
        session.fail(CommandFailed(Exit.REFUSED, sentence, "empty_history"))
    code = program(past, tree, name=proposal.name, as_json=as_json, page=html)
    if code:
        raise typer.Exit(code)


def _gathered(lab: Path | None, cluster: str | None, days: int) -> LabHistory:
    # Imported when needed: progress bars would slow down every command's help.
    from allmende.cli.commands.past import gather

    return session.run(gather(lab, cluster, days * DAY_MS))


def _no_place(target: Path, read: Collection[Path]) -> str | None:
    """Why nothing can be written there. Looked at before a lab is asked: what took minutes must not be lost to a wrong folder."""
    real = Path(os.path.realpath(target))
    if real in {Path(os.path.realpath(each)) for each in read}:
        return "it is read by this very command; give another place"
    if real.exists() and not real.is_file():
        return "it is there already and no ordinary file; give another place"
    if not real.parent.is_dir():
        return f"there is no folder {target.parent}"
    return None if os.access(real.parent, os.W_OK) else f"nothing may be written to the folder {target.parent}"


def _only_for_a_lab(days: int | None, cluster: str | None, keep: Path | None) -> str | None:
    given = (("--days", days), ("--cluster", cluster), ("--keep", keep))
    return next((name for name, value in given if value is not None), None)


def _proposal(file: Path) -> tuple[Budget, ...]:
    tree = read_file(file)
    for fault in tree.faults:
        typer.echo(f"{file}: {fault.sentence} [{fault.code}]", err=True)
    if tree.faults:
        raise typer.Exit(int(Exit.USAGE))
    return tree.budgets


def _found() -> "list[EntryPoint]":
    # As above: looking for packages takes longer than all else that a command's help does.
    from importlib.metadata import entry_points

    return list(entry_points(group=GROUP))


def _program(found: "Sequence[EntryPoint]") -> Any:
    """The simulator's part, loaded now: before anything is asked of a lab."""
    if not found:
        sentence = f"replays come with the package {PACKAGE}, which is not installed here; get it with: pip install {PACKAGE}"
        session.fail(CommandFailed(Exit.UNREACHABLE, sentence))
    try:
        return found[0].load()
    except (ImportError, AttributeError) as error:
        session.fail(CommandFailed(Exit.USAGE, f"{PACKAGE} cannot be loaded ({error}): install {PACKAGE} again"))


def _read(file: Path) -> LabHistory:
    try:
        return msgspec.json.decode(file.read_bytes(), type=LabHistory)
    except OSError as error:
        session.fail(CommandFailed(Exit.USAGE, f"{file} cannot be read: {error.strerror}"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        session.fail(CommandFailed(Exit.USAGE, f"{file} is no past that --keep wrote ({error})"))


def _keep(past: LabHistory, file: Path) -> None:
    # A link's file is replaced and not the link; with the process's number, two commands do not write into one another.
    real = Path(os.path.realpath(file))
    draft = real.with_name(f".{real.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(msgspec.json.encode(past))
        draft.replace(real)
    except OSError as error:
        session.fail(CommandFailed(Exit.USAGE, f"{file} cannot be written: {error.strerror}"))
    finally:
        draft.unlink(missing_ok=True)
    if sys.stderr.isatty():
        typer.echo(f"kept in {file}: it names people, so keep it among those who may see the lab's jobs", err=True)
