"""`allmende ledger`: pages are put together only when they belong together, CSV is exact, and the guide's example is true."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from allmende.cli.commands import ledger, reporting
from allmende.cli.errors import CommandFailed
from allmende.proto.corrections import Correction
from allmende.proto.reports import StatementLine, StatementPage, StatementQuery, UsageByPage, UsageByRow, UsagePage, UsageRow
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "reports.md"
QUERY = StatementQuery(cluster="c1", budget="nlp", from_ms=0, to_ms=DAY_MS)


def line(number: int, charged: int, held: int = 0) -> StatementLine:
    return StatementLine(
        attempt=f"{number:026d}",
        job=f"{number + 100:026d}",
        gpus=2,
        granted_at_ms=HOUR_MS,
        ended_at_ms=None if held else 2 * HOUR_MS,
        outcome=None if held else "finished",
        charged_gpu_ms=charged,
        held_gpu_ms=held,
    )


def page(closing: int, *lines: StatementLine, more: bool = False, held: int = 0) -> StatementPage:
    return StatementPage(
        cluster="c1",
        budget="nlp",
        as_of_ms=DAY_MS,
        opening_gpu_ms=1_000,
        closing_gpu_ms=closing,
        held_gpu_ms=held,
        lines=lines,
        next_after=lines[-1].attempt if more else None,
    )


class Pages:
    """In a session's stead: one page after the other, the last two for ever."""

    def __init__(self, *pages: StatementPage) -> None:
        self.pages = list(pages)
        self.asked = 0

    async def ask(self, _row: object, _query: object, _reply: object) -> StatementPage:
        self.asked += 1
        return self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]


async def test_pages_of_two_states_of_the_books_are_read_again() -> None:
    first, second = page(1_030, line(1, 10), more=True), page(1_035, line(2, 20))
    session: Any = Pages(first, second, first, page(1_030, line(2, 20)))
    whole = await ledger.whole_statement(session, QUERY)
    assert ([each.charged_gpu_ms for each in whole.lines], whole.closing_gpu_ms, session.asked) == ([10, 20], 1_030, 4)


async def test_books_that_do_not_hold_still_are_said_to() -> None:
    session: Any = Pages(page(1_035, line(2, 20)))
    with pytest.raises(CommandFailed, match="--until") as failed:
        await ledger.whole_statement(session, QUERY)
    assert failed.value.code == "books_advanced"


def test_the_guides_statement_is_what_csv_says() -> None:
    told = page(1_000 + 7_200_000 + 3_600_000 - 1_800_000, line(1, 7_200_000), line(2, 3_600_000, 3_600_000), held=3_600_000)
    put_right = Correction(
        number=1,
        correction=f"{201:026d}",
        cluster="c1",
        take_from="budget/nlp",
        charge_to="unallocated",
        from_ms=HOUR_MS,
        to_ms=2 * HOUR_MS,
        amount_gpu_ms=1_800_000,
        within_gpu_ms=1_800_000,
        author="olga",
        reason="the node's fans had failed",
        at_ms=5 * HOUR_MS,
    )
    whole = ledger.Statement(**asdict(told), corrections=(put_right,))
    assert f"```\n{ledger.statement_csv(whole)}\n```" in GUIDE.read_text(encoding="utf-8")


def test_nobodys_usage_is_an_empty_name() -> None:
    rows = (UsageRow(from_ms=0, budget=None, gpu_ms=2**60), UsageRow(from_ms=0, budget="nlp", gpu_ms=1))
    whole = UsagePage(cluster="c1", as_of_ms=1, rows=rows)
    assert ledger.usage_csv(whole) == f"from_ms,budget,gpu_ms\n0,,{2**60}\n0,nlp,1"
    assert ledger.usage_csv(replace(whole, rows=())) == "from_ms,budget,gpu_ms"


def test_a_user_or_model_that_is_not_known_is_an_empty_name() -> None:
    rows = (
        UsageByRow(from_ms=0, name=None, allocated_gpu_ms=2**60, unallocated_gpu_ms=0),
        UsageByRow(from_ms=0, name="h100", allocated_gpu_ms=1, unallocated_gpu_ms=2),
    )
    whole = UsageByPage(cluster="c1", by="gpu_model", as_of_ms=1, rows=rows)
    assert ledger.usage_by_csv(whole) == f"from_ms,gpu_model,allocated_gpu_ms,unallocated_gpu_ms\n0,,{2**60},0\n0,h100,1,2"


NOW_MS = 20 * DAY_MS + 7 * HOUR_MS + 3 * MINUTE_MS + 1
UNTIL_MS = 20 * DAY_MS + 7 * HOUR_MS + 5 * MINUTE_MS
SPANS = [
    ("a statement ends now, to the millisecond", "1d", None, None, 1, (NOW_MS - DAY_MS, NOW_MS)),
    ("days begin at midnight, the last one is cut", "1d", None, None, DAY_MS, (19 * DAY_MS, UNTIL_MS)),
    ("hours begin at their beginning", "90m", None, None, HOUR_MS, (20 * DAY_MS + 5 * HOUR_MS, UNTIL_MS)),
    ("what was typed stays", "1d", "1970-01-02T00:01Z", "1970-01-03T00:00Z", DAY_MS, (DAY_MS + MINUTE_MS, 2 * DAY_MS)),
]


@pytest.mark.parametrize(("sentence", "last", "begin", "until", "edge_ms", "expected"), SPANS, ids=[row[0] for row in SPANS])
def test_spans(sentence: str, last: str, begin: str | None, until: str | None, edge_ms: int, expected: tuple[int, int]) -> None:
    span = reporting.span_of(last, begin, until, NOW_MS, edge_ms)
    assert (span.from_ms, span.to_ms) == expected


def test_a_length_without_a_unit_is_refused() -> None:
    with pytest.raises(CommandFailed, match="--last"):
        reporting.span_of("7", None, None, NOW_MS, 1)
