"""`allmende ledger verify`: do a cluster's books agree with themselves? Only asks; never repairs."""

from msgspec.structs import replace
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.ledger import CsvOption, FromOption, UntilOption, check_forms, print_answer
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.reports import Difference, VerifyPage, VerifyQuery


def verify(
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
            now_ms = opened.now_ms()
            query = VerifyQuery(
                cluster=opened.one_cluster(cluster),
                from_ms=instants.read("--from", from_, now_ms) or 0,
                to_ms=instants.read("--until", until, now_ms),
            )
            whole = await whole_verification(opened, query)
            print_answer(whole, verification_csv(whole), _table(whole), as_json, as_csv)
            if whole.found:
                sentence = f"the books of {whole.cluster} differ in {render.count(whole.found, 'place')}"
                raise CommandFailed(Exit.REFUSED, sentence, "books_differ")

    check_forms(as_json, as_csv)
    session.run(work())


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


def verification_csv(whole: VerifyPage) -> str:
    """One row a difference."""
    rows = [(each.what, each.of, each.at_ms, each.recomputed, each.kept) for each in whole.differences]
    return render.comma_separated(("what", "of", "at_ms", "recomputed", "kept"), rows)


def _table(whole: VerifyPage) -> RenderableType:
    title = f"{whole.cluster}: books of {instants.show(whole.from_ms)} to {instants.show(whole.to_ms)}"
    rows = [(each.what, instants.show(each.at_ms), each.sentence) for each in whole.differences]
    verdict = f"{whole.postings} postings in {whole.buckets} buckets, {render.count(whole.found, 'difference')}"
    if whole.buckets_of_unknown_capacity:
        verdict += f"; conservation not judged in {whole.buckets_of_unknown_capacity}, whose capacity is not known"
    return render.table(title, ("WHAT", "AT", "SENTENCE"), [*rows, ("in all", "", verdict)])
