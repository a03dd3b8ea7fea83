"""`allmende ledger verify`: do a cluster's books agree with themselves? Only asks; never repairs."""

from collections.abc import Iterable
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.reporting import Answer, CsvOption, FromOption, UntilOption, check_forms, print_answer
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.reports import Difference, VerifyEventsPage, VerifyEventsQuery, VerifyPage, VerifyQuery

EventsOption = Annotated[
    bool, typer.Option("--events", help="Compute the postings themselves anew, from what was heard and is still kept.")
]


def verify(
    events: EventsOption = False,
    cluster: ClusterOption = None,
    from_: FromOption = None,
    until: UntilOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Compute the books anew from the postings and compare; without --from and --until, all of them. Exit code 1: they differ."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            if events:
                heard = await whole_events(opened, VerifyEventsQuery(cluster=opened.one_cluster(cluster)))
                print_answer(Answer(heard, differences_csv(heard.differences), _events_table(heard)), as_json, as_csv)
                _judge(heard.cluster, heard.found)
                return
            now_ms = opened.now_ms()
            query = VerifyQuery(
                cluster=opened.one_cluster(cluster),
                from_ms=instants.read("--from", from_, now_ms) or 0,
                to_ms=instants.read("--until", until, now_ms),
            )
            whole = await whole_verification(opened, query)
            print_answer(Answer(whole, differences_csv(whole.differences), _table(whole)), as_json, as_csv)
            _judge(whole.cluster, whole.found)

    check_forms(as_json, as_csv)
    if events and (from_ is not None or until is not None):
        session.fail(
            CommandFailed(Exit.USAGE, "--events goes from seal to seal, over all that is kept: leave out --from and --until")
        )
    session.run(work())


def _judge(cluster: str, found: int) -> None:
    if found:
        raise CommandFailed(Exit.REFUSED, f"the books of {cluster} differ in {render.count(found, 'place')}", "books_differ")


async def whole_events(opened: Session, query: VerifyEventsQuery) -> VerifyEventsPage:
    """All pieces as one, with every difference."""
    differences: list[Difference] = []
    pieces: list[VerifyEventsPage] = []
    while True:
        page = await opened.ask(subjects.VERIFY_EVENTS, query, VerifyEventsPage)
        differences += page.differences
        seen = query.offset + len(page.differences)
        if seen < page.found and page.differences:
            # The oldest seal may go meanwhile; this one was named.
            query = replace(query, after=page.after, offset=seen)
            continue
        pieces.append(page)
        if page.next_after is None:
            break
        query = replace(query, after=page.next_after, offset=0)
    return replace(
        page,
        after=pieces[0].after,
        from_ms=pieces[0].from_ms,
        words=sum(each.words for each in pieces),
        postings=sum(each.postings for each in pieces),
        not_judged=sum(each.not_judged for each in pieces),
        found=sum(each.found for each in pieces),
        differences=tuple(differences),
    )


async def whole_verification(opened: Session, query: VerifyQuery) -> VerifyPage:
    """All days as one, with every difference."""
    differences: list[Difference] = []
    days: list[VerifyPage] = []
    while True:
        page = await opened.ask(subjects.VERIFY, query, VerifyPage)
        differences += page.differences
        seen = query.offset + len(page.differences)
        if seen < page.found and page.differences:
            query = replace(query, offset=seen)
            continue
        days.append(page)
        if page.next_from_ms is None:
            break
        query = replace(query, from_ms=page.next_from_ms, offset=0)
    return replace(
        page,
        from_ms=days[0].from_ms,
        postings=sum(each.postings for each in days),
        buckets=sum(each.buckets for each in days),
        buckets_of_unknown_capacity=sum(each.buckets_of_unknown_capacity for each in days),
        found=sum(each.found for each in days),
        differences=tuple(differences),
    )


def differences_csv(differences: Iterable[Difference]) -> str:
    """One row a difference."""
    rows = [(each.what, each.of, each.at_ms, each.recomputed, each.kept) for each in differences]
    return render.comma_separated(("what", "of", "at_ms", "recomputed", "kept"), rows)


def _table(whole: VerifyPage) -> RenderableType:
    title = f"{whole.cluster}: books of {instants.show(whole.from_ms)} to {instants.show(whole.to_ms)}"
    rows = [(each.what, instants.show(each.at_ms), each.sentence) for each in whole.differences]
    verdict = f"{whole.postings} postings in {whole.buckets} buckets, {render.count(whole.found, 'difference')}"
    if whole.buckets_of_unknown_capacity:
        verdict += f"; conservation not judged in {whole.buckets_of_unknown_capacity}, whose capacity is not known"
    return render.table(title, ("WHAT", "AT", "SENTENCE"), [*rows, ("in all", "", verdict)])


def _events_table(whole: VerifyEventsPage) -> RenderableType:
    title = f"{whole.cluster}: heard from {instants.show(whole.from_ms)} to {instants.show(whole.to_ms)}"
    rows = [(each.what, instants.show(each.at_ms), each.sentence) for each in whole.differences]
    verdict = f"{whole.postings} postings from {whole.words} words, {render.count(whole.found, 'difference')}"
    if whole.not_judged:
        verdict += f"; {render.count(whole.not_judged, 'attempt')} complete before not judged"
    return render.table(title, ("WHAT", "AT", "SENTENCE"), [*rows, ("in all", "", verdict)])
