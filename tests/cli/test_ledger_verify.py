"""`allmende ledger verify`: days and pages become one answer, and a difference is an exit code."""

from typing import Any

from allmende.cli.commands import ledger_verify
from allmende.proto.reports import Difference, VerifyEventsPage, VerifyEventsQuery, VerifyPage, VerifyQuery
from allmende.proto.units import DAY_MS


def difference(number: int) -> Difference:
    return Difference(what="bucket", of="nlp", at_ms=number, recomputed=number, kept=0, sentence=f"difference {number}")


def page(day: int, found: int, *differences: Difference, last: bool = False) -> VerifyPage:
    return VerifyPage(
        cluster="c1",
        as_of_ms=9 * DAY_MS,
        from_ms=day * DAY_MS,
        to_ms=(day + 1) * DAY_MS,
        postings=10,
        buckets=288,
        buckets_of_unknown_capacity=1,
        found=found,
        differences=differences,
        next_from_ms=None if last else (day + 1) * DAY_MS,
    )


class Pages:
    """In a session's stead: one page after the other, and what was asked for."""

    def __init__(self, *pages: VerifyPage) -> None:
        self.pages = list(pages)
        self.asked: list[tuple[int, int]] = []

    async def ask(self, row: object, query: VerifyQuery, reply: object) -> VerifyPage:
        self.asked.append((query.from_ms // DAY_MS, query.offset))
        return self.pages.pop(0)


async def test_days_and_pages_become_one_answer() -> None:
    session: Any = Pages(page(3, 0), page(4, 3, difference(1), difference(2)), page(4, 3, difference(3)), page(5, 0, last=True))
    whole = await ledger_verify.whole_verification(session, VerifyQuery(cluster="c1"))
    assert session.asked == [(0, 0), (4, 0), (4, 2), (5, 0)]
    assert (whole.from_ms, whole.to_ms, whole.postings, whole.buckets) == (3 * DAY_MS, 6 * DAY_MS, 30, 3 * 288)
    assert (whole.found, [each.at_ms for each in whole.differences]) == (3, [1, 2, 3])
    assert ledger_verify.differences_csv(whole.differences).splitlines()[:2] == [
        "what,of,at_ms,recomputed,kept",
        "bucket,nlp,1,1,0",
    ]


def piece(after: int, found: int, *differences: Difference, last: bool = False) -> VerifyEventsPage:
    return VerifyEventsPage(
        cluster="c1",
        as_of_ms=9,
        after=after,
        upto=after + 10,
        from_ms=after,
        to_ms=after + 10,
        words=100,
        postings=7,
        not_judged=1,
        found=found,
        differences=differences,
        next_after=None if last else after + 10,
    )


class Pieces:
    """In a session's stead: one piece after the other, and what was asked for."""

    def __init__(self, *pages: VerifyEventsPage) -> None:
        self.pages = list(pages)
        self.asked: list[tuple[int | None, int]] = []

    async def ask(self, row: object, query: VerifyEventsQuery, reply: object) -> VerifyEventsPage:
        self.asked.append((query.after, query.offset))
        return self.pages.pop(0)


async def test_pieces_from_seal_to_seal_become_one_answer() -> None:
    session: Any = Pieces(piece(5, 0), piece(15, 2, difference(1)), piece(15, 2, difference(2)), piece(25, 0, last=True))
    whole = await ledger_verify.whole_events(session, VerifyEventsQuery(cluster="c1"))
    assert session.asked == [(None, 0), (15, 0), (15, 1), (25, 0)]
    assert (whole.after, whole.upto, whole.from_ms, whole.to_ms) == (5, 35, 5, 35)
    assert (whole.words, whole.postings, whole.not_judged, whole.found) == (300, 21, 3, 2)
    assert [each.at_ms for each in whole.differences] == [1, 2]
