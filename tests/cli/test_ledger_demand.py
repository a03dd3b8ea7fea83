"""`allmende ledger demand`: pages become one answer, unknown is not zero in any form, and spans are full hours."""

from typing import Any

from allmende.cli.commands import ledger_demand, reporting
from allmende.proto.figures import DemandMark, DemandPage, DemandQuery, DemandRow
from allmende.proto.units import DAY_MS, HOUR_MS


def row(hour: int, demand: int | None) -> DemandRow:
    return DemandRow(
        from_ms=hour * HOUR_MS,
        budget="nlp",
        entitled_gpu_ms=2**60,
        demand_gpu_ms=demand,
        owed_gpu_ms=demand,
        delivered_gpu_ms=7,
        unmet_gpu_ms=demand,
    )


def page(*rows: DemandRow, after: DemandMark | None = None) -> DemandPage:
    return DemandPage(cluster="c1", as_of_ms=DAY_MS, to_ms=DAY_MS, jobs_not_known=1, rows=rows, next_after=after)


class Pages:
    """In a session's stead: one page after the other, and from where each was asked for."""

    def __init__(self, *pages: DemandPage) -> None:
        self.pages = list(pages)
        self.asked: list[DemandMark | None] = []

    async def ask(self, _row: object, query: DemandQuery, _reply: object) -> DemandPage:
        self.asked.append(query.after)
        return self.pages.pop(0)


async def test_an_empty_page_is_not_the_end() -> None:
    quiet, behind = DemandMark(from_ms=48 * HOUR_MS), DemandMark(from_ms=50 * HOUR_MS, budget="nlp")
    session: Any = Pages(page(after=quiet), page(row(50, 1), after=behind), page(row(51, None)))
    whole = await ledger_demand.whole_demand(session, DemandQuery(cluster="c1", from_ms=0, to_ms=99 * HOUR_MS))
    assert session.asked == [None, quiet, behind]
    assert [each.from_ms // HOUR_MS for each in whole.rows] == [50, 51]


def test_what_is_not_known_is_empty_in_csv_and_said_in_tables() -> None:
    lines = ledger_demand.demand_csv(page(row(1, None), row(2, 0))).splitlines()
    assert lines[0] == "from_ms,budget,entitled_gpu_ms,demand_gpu_ms,owed_gpu_ms,delivered_gpu_ms,unmet_gpu_ms"
    assert lines[1:] == [f"3600000,nlp,{2**60},,,7,", f"7200000,nlp,{2**60},0,0,7,0"]
    assert (ledger_demand.known_hours(None), ledger_demand.known_hours(0)) == ("not known", "0.0")


def test_what_follows_from_now_is_widened_to_full_hours() -> None:
    now_ms = 20 * DAY_MS + 7 * HOUR_MS + 1
    span = reporting.hours_of("90m", None, None, now_ms)
    assert (span.from_ms, span.to_ms) == (20 * DAY_MS + 6 * HOUR_MS, 20 * DAY_MS + 8 * HOUR_MS)
