"""`allmende notices`: what people were told of their budgets, and, for operators, how that fares on its way to the webhook.

Decides nothing: the budget service says each notice once, and keeps it.
"""

from typing import Annotated, get_args

import typer
from msgspec import Struct
from rich.console import RenderableType

from allmende.chassis.clock import RealClock
from allmende.cli import render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.session import JsonOption, LabOption, WatchOption
from allmende.proto import subjects
from allmende.proto.notices import (
    PAGE_MOST,
    DeliveriesPage,
    DeliveriesQuery,
    Delivery,
    DeliveryState,
    KeptNotice,
    NoticesPage,
    NoticesQuery,
    Retried,
    RetryDeliveries,
)
from allmende.proto.units import Ms

app = typer.Typer(help="What people were told of their budgets, and how it was delivered.", no_args_is_help=False)

LimitOption = Annotated[int, typer.Option(min=1, max=PAGE_MOST, help="How many, newest first.")]
BeforeOption = Annotated[int | None, typer.Option(min=0, metavar="NUMBER", help="Only those before this number.")]


@app.callback(invoke_without_command=True)
def notices(
    context: typer.Context,
    budget: Annotated[str | None, session.name_option("Only of this budget.", "BUDGET")] = None,
    cluster: ClusterOption = None,
    limit: LimitOption = 30,
    before: BeforeOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """List what people were told: budgets at 80, 100 and 120 % of what they are owed, and those that come there at this rate."""
    if context.invoked_subcommand is not None:
        return

    async def work() -> None:
        async with session.opened(lab) as opened:
            opened.check_cluster(cluster)
            query = NoticesQuery(budget=budget, cluster=cluster, before=before, limit=limit)

            async def fetch() -> tuple[Struct, RenderableType]:
                page = await opened.ask(subjects.NOTICES, query, NoticesPage)
                return page, notices_table(page, opened.now_ms())

            await session.repeatedly(fetch, as_json, watch)

    session.run(work())


@app.command()
def deliveries(
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help=f"Only those that are {', '.join(get_args(DeliveryState))}.")
    ] = None,
    limit: LimitOption = 30,
    before: BeforeOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """For operators: list the notices on their way to the webhook, and why the last try failed."""
    if state is not None and state not in get_args(DeliveryState):
        raise typer.BadParameter(f"{state!r} is not a state; there are {', '.join(get_args(DeliveryState))}", param_hint="--state")

    async def work() -> None:
        async with session.opened(lab) as opened:
            query = DeliveriesQuery(state=state, before=before, limit=limit)  # type: ignore[arg-type]  # checked above

            async def fetch() -> tuple[Struct, RenderableType]:
                page = await opened.ask(subjects.DELIVERIES, query, DeliveriesPage)
                return page, deliveries_table(page, RealClock().now_ms())

            await session.repeatedly(fetch, as_json, watch)

    session.run(work())


@app.command()
def retry(
    number: Annotated[int | None, typer.Argument(min=0, metavar="NUMBER", help="The notice's number.", show_default=False)] = None,
    all_: Annotated[bool, typer.Option("--all", help="All that were given up.")] = False,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """For operators: post again what was given up, one notice or all. Each gets as many tries as a new one."""
    if (number is None) != all_:
        raise typer.BadParameter("say which: the NUMBER of one notice, or --all")

    async def work() -> None:
        async with session.opened(lab) as opened:
            reply = await opened.ask(subjects.RETRY_DELIVERIES, RetryDeliveries(number=number), Retried)
            session.show(reply, _retried(reply), as_json)

    session.run(work())


def notices_table(page: NoticesPage, now_ms: Ms) -> RenderableType:
    """Notices for people. The sentence names budget and cluster already, so those columns go first on a narrow screen."""
    title = "notices, newest first" if page.notices else "no notices"
    title += _older(page.next_before)
    return render.table(title, ("NUMBER#", "WHEN", "BUDGET?", "CLUSTER?", "NOTICE~"), (_row(each, now_ms) for each in page.notices))


def _row(kept: KeptNotice, now_ms: Ms) -> tuple[str, ...]:
    notice = kept.notice
    return str(kept.number), render.ago(notice.as_of_ms, now_ms), notice.budget, notice.cluster, notice.sentence


def deliveries_table(page: DeliveriesPage, real_ms: Ms) -> RenderableType:
    """Deliveries for operators, by the clock on the wall."""
    title = "deliveries, newest first" if page.deliveries else "no deliveries"
    title += "; there is no webhook now, so nothing is sent" if page.sender == "off" else ""
    title += _older(page.next_before)
    columns = ("NUMBER#", "BUDGET", "STATE", "TRIES#", "SETTLED", "NEXT TRY", "LAST FAULT~")
    return render.table(title, columns, (_delivery_row(each, real_ms) for each in page.deliveries))


def _delivery_row(each: Delivery, real_ms: Ms) -> tuple[str, ...]:
    return (
        str(each.number),
        each.budget,
        each.state.replace("_", " "),
        str(each.tries),
        render.ago(each.settled_at_ms, real_ms),
        # One that is due, or being tried right now, has an instant that has passed or is about to.
        render.ago(each.next_try_at_ms, real_ms),
        each.problem or "-",
    )


def _older(next_before: int | None) -> str:
    return "" if next_before is None else f"; older ones with --before {next_before}"


def _retried(reply: Retried) -> str:
    if not reply.deliveries:
        return "none was given up, so none is posted again"
    return f"{render.count(reply.deliveries, 'notice')} will be posted again"
