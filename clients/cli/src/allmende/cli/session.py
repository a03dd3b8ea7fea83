"""One command's connection to a lab: ask, publish, watch, print. Opened and closed around every command."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import typer
from msgspec import Struct
from rich.console import Console, RenderableType

from allmende.chassis.clock import parse_clock
from allmende.chassis.entropy import RandomIds
from allmende.chassis.errors import Misconfigured, Transient
from allmende.chassis.ports import Bus, Clock, Ids
from allmende.cli import render
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.place import Place, environment, find, person
from allmende.proto.envelope import Refusal
from allmende.proto.ids import is_name
from allmende.proto.subjects import Request

LabOption = Annotated[Path | None, typer.Option("--lab", help="Folder of a lab that `allmende up` keeps (default: ~/.allmende).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]
WatchOption = Annotated[bool, typer.Option("--watch", help="Redraw every second until Ctrl-C.")]

# People do not wait longer than this for an answer before they ask themselves whether anything happens.
PATIENCE_S = 10.0
REDRAW_S = 1.0
# What the NATS server's own refusal is called: it speaks of subjects, which people do not know.
NOT_PERMITTED = "not_permitted"
# Nothing is folded through a pipe: programs such as grep look at lines.
PIPE_WIDTH = 10_000

T = TypeVar("T")
R = TypeVar("R")


def name_option(words: str, metavar: str) -> Any:
    """An option whose value names a budget, a person or the like: what cannot be a name is refused before it is sent."""
    return typer.Option(help=words, metavar=metavar, parser=read_name)


def read_name(text: str) -> str:
    """A name that was typed.

    Raises:
        BadParameter: it cannot be a name.
    """
    if not is_name(text):
        raise typer.BadParameter(f"{text!r} is not a name: up to 63 of a-z, 0-9, - and _, with a letter or digit at both ends")
    return text


class Session:
    """What a command works with. `place` says who and where, `now_ms` is the lab's clock."""

    def __init__(self, place: Place, bus: Bus, clock: Clock, ids: Ids) -> None:
        self.place = place
        self.bus = bus
        self.clock = clock
        self.ids = ids

    def now_ms(self) -> int:
        """The lab's clock."""
        return self.clock.now_ms()

    def check_cluster(self, cluster: str | None) -> None:
        """Refuse a cluster that this lab has not, where the lab's clusters are known.

        Raises:
            CommandFailed: there is no such cluster.
        """
        known = self.place.clusters
        if cluster is not None and known and cluster not in known:
            raise CommandFailed(Exit.USAGE, f"there is no cluster {cluster}; this lab has {', '.join(known)}")

    def one_cluster(self, cluster: str | None) -> str:
        """The cluster that a command names, or else the lab's only one.

        Raises:
            CommandFailed: there is no such cluster, or none is named where there are several.
        """
        self.check_cluster(cluster)
        known = self.place.clusters
        if cluster is None and len(known) != 1:
            raise CommandFailed(Exit.USAGE, "name a cluster with --cluster" + (f": {', '.join(known)}" if known else ""))
        return cluster or known[0]

    async def ask(self, row: Request, request: Struct, reply: type[R]) -> R:
        """Ask a service as this user.

        Raises:
            CommandFailed: refused, or nobody answered.
        """
        # Imported when needed, as below: the NATS client would triple the time of `allmende --help`.
        from allmende.chassis import rpc

        try:
            answer = await rpc.ask(self.bus, row, self.place.user, request, timeout_s=PATIENCE_S)
        except Refusal as refusal:
            sentence = refusal.problem.sentence
            if refusal.problem.code == NOT_PERMITTED:
                sentence = f"{self.place.user} may not ask the {row.service} service for this: it takes an operator of the lab"
            raise CommandFailed(Exit.REFUSED, sentence, refusal.problem.code) from None
        except Transient:
            sentence = f"the {row.service} service does not answer: is it running? Try again in a moment"
            raise CommandFailed(Exit.UNREACHABLE, sentence) from None
        if not isinstance(answer, reply):
            raise CommandFailed(Exit.REFUSED, f"the {row.service} service answered with something else than {reply.__name__}")
        return answer


@asynccontextmanager
async def opened(lab: Path | None) -> AsyncIterator[Session]:
    """Connect to a lab.

    Raises:
        CommandFailed: there is none, or it cannot be reached with these credentials.
    """
    from allmende.chassis.bus import connect

    place = find(lab, environment())
    try:
        clock = parse_clock(place.clock)
        bus = await connect(place.nats_url, role=place.role, identity=place.user, seed_file=place.seed_file, wait_s=PATIENCE_S)
    except (Transient, Misconfigured, OSError) as error:
        why = str(error) or "no answer"
        raise CommandFailed(
            Exit.UNREACHABLE, f"cannot reach the lab at {place.nats_url} ({why}): is `allmende up` running?"
        ) from None
    try:
        yield Session(place, bus, clock, RandomIds())
    finally:
        await bus.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one command; failures become a sentence on stderr and an exit code."""
    from allmende.chassis import log

    # What a library warns of is no part of an answer; the sentence of a failure says it.
    log.setup("cli", person(), "error")
    try:
        return asyncio.run(work)
    except CommandFailed as failed:
        fail(failed)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def fail(failed: CommandFailed) -> NoReturn:
    """Say why and leave."""
    code = f" [{failed.code}]" if failed.code else ""
    typer.echo(render.harmless(f"allmende: {failed}{code}"), err=True)
    raise typer.Exit(int(failed.exit_code))


def console(file: StringIO | None = None) -> Console:
    """Where tables and lines for people go. Brackets in people's texts are no markup."""
    width = None if file is None and sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=file, width=width, markup=False, highlight=False)


def put(text: str, *, nl: bool = True) -> None:
    """Write to standard output; leave where it takes no more, such as a file on a full disk.

    Raises:
        BrokenPipeError: nobody reads on; the command ends in silence.
    """
    try:
        typer.echo(text, nl=nl)
    except BrokenPipeError:
        raise
    except OSError as error:
        sentence = f"it is done, but the answer cannot be written: {error.strerror or error}"
        fail(CommandFailed(Exit.UNWRITTEN, sentence))


def print_out(drawn: RenderableType) -> None:
    """Print for people. Through a pipe: whole lines, however long, without colours and without spaces at their ends."""
    if sys.stdout.isatty():
        console().print(render.Harmless(drawn))
        return
    lines = StringIO()
    console(lines).print(render.Harmless(drawn))
    put("\n".join(line.rstrip() for line in lines.getvalue().splitlines()))


def show(value: Struct | dict[str, Any], drawn: RenderableType, as_json: bool) -> None:
    """Print one answer, for programs or for people."""
    if as_json:
        put(msgspec.json.format(msgspec.json.encode(value)).decode())
    else:
        print_out(drawn)


async def repeatedly(fetch: Callable[[], Awaitable[tuple[Struct, RenderableType]]], as_json: bool, watch: bool) -> None:
    """Print what `fetch` brings, once or every second. With `--json --watch`: one line an answer."""
    if not watch:
        value, drawn = await fetch()
        show(value, drawn, as_json)
    elif sys.stdout.isatty() and not as_json:
        await _redraw(fetch)
    else:
        while True:
            value, drawn = await fetch()
            if as_json:
                put(msgspec.json.encode(value).decode())
            else:
                print_out(drawn)
            await asyncio.sleep(REDRAW_S)


async def _redraw(fetch: Callable[[], Awaitable[tuple[Struct, RenderableType]]]) -> None:
    from rich.live import Live

    _, drawn = await fetch()
    with Live(render.Harmless(drawn), console=console(), auto_refresh=False, screen=True) as live:
        while True:
            live.update(render.Harmless(drawn), refresh=True)
            await asyncio.sleep(REDRAW_S)
            _, drawn = await fetch()
