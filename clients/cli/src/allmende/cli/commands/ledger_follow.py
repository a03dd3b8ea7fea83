"""`allmende ledger follow`: the picture of a cluster's budgets, then what changes. Only listens: the ledger never knows who does.

Of a terminal that is slower than the ledger each line shows the newest value; what came in between is passed over.
"""

import asyncio
from typing import Annotated

import msgspec
import typer

from allmende.chassis.ports import Bus
from allmende.cli import render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.session import JsonOption, LabOption
from allmende.proto.envelope import Refusal, decode
from allmende.proto.ledger import BudgetUsage, UsageStanding
from allmende.proto.message import Message
from allmende.proto.subjects import BY_MESSAGE

STREAM = "STANDINGS"


class Newest:
    """The newest value of each subject that nobody has looked at yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._some = asyncio.Event()

    def hear(self, subject: str, data: bytes) -> None:
        """A value that has just been said."""
        self._waiting[subject] = data
        self._some.set()

    def remember(self, subject: str, data: bytes) -> None:
        """A value of the picture: what was said since it was asked for is newer."""
        self._waiting.setdefault(subject, data)
        self._some.set()

    async def take(self) -> list[bytes]:
        """What is new, by subject; waits until something is."""
        await self._some.wait()
        return self.now()

    def now(self) -> list[bytes]:
        """What is new, by subject; nothing, where nothing is."""
        self._some.clear()
        taken, self._waiting = self._waiting, {}
        return [taken[subject] for subject in sorted(taken)]


async def opening(bus: Bus, cluster: str, newest: Newest) -> None:
    """Listen, and then ask for the picture: in this order nothing is missed."""
    patterns = [f"{BY_MESSAGE[kind].prefix}.{cluster}.*" for kind in (UsageStanding, BudgetUsage)]
    for pattern in patterns:
        await bus.watch(pattern, newest.hear)
    for pattern in patterns:
        for subject, data in await bus.last_values(STREAM, [pattern]):
            newest.remember(subject, data)


def follow(
    cluster: ClusterOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    once: Annotated[bool, typer.Option("--once", help="Print the picture and leave.")] = False,
) -> None:
    """Show where every budget stands and what it uses, then every change; with --json one object a line. Ctrl-C ends it."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            newest = Newest()
            await opening(opened.bus, opened.one_cluster(cluster), newest)
            for data in newest.now():
                _print(data, as_json)
            while not once:
                for data in await newest.take():
                    _print(data, as_json)

    session.run(work())


def _print(data: bytes, as_json: bool) -> None:
    try:
        body = decode(data).body
    except Refusal:
        # Of a later release, perhaps; the next value may be one that we can read.
        return
    typer.echo(msgspec.json.encode({"type": body.TYPE, **msgspec.to_builtins(body)}).decode() if as_json else line(body))


def line(body: Message) -> str:
    """One value for people."""
    match body:
        case UsageStanding():
            had = render.ratio(body.charged_gpu_ms + body.held_gpu_ms, body.entitlement_gpu_ms)
            owed = render.gpu_hours(body.entitlement_gpu_ms)
            charged, held = render.gpu_hours(body.charged_gpu_ms), render.gpu_hours(body.held_gpu_ms)
            return f"{body.budget}  stands at {had}: {charged} GPU-h charged, {held} held, {owed} owed"
        case BudgetUsage():
            now = f"{render.count(body.attempts, 'attempt')} on {render.count(body.gpus, 'GPU')}"
            hour, day = render.gpu_hours(body.hour_gpu_ms), render.gpu_hours(body.day_gpu_ms)
            return f"{body.budget}  uses {now}; {hour} GPU-h this hour, {day} today"
    return body.TYPE
