"""`allmende ledger figures`: teams of all pages, amounts in CSV, and quotients only where there is a whole."""

from typing import Any

import pytest

from allmende.cli.commands import ledger_figures, ledger_forecast, reporting
from allmende.proto.figures import FiguresPage, FiguresQuery, PaceRow, TeamFigures
from allmende.proto.units import HOUR_MS


def team(name: str, owed: int = 0, delivered: int = 0) -> TeamFigures:
    return TeamFigures(
        budget=name,
        entitled_gpu_ms=9,
        demand_gpu_ms=8,
        owed_gpu_ms=owed,
        delivered_gpu_ms=delivered,
        weekly_gpu_ms=min(owed, delivered),
        strict_gpu_ms=0,
        watched_gpu_ms=0,
        busy_gpu_ms=0,
    )


def page(*teams: TeamFigures, after: str | None = None) -> FiguresPage:
    return FiguresPage(
        cluster="c1",
        budget=None,
        as_of_ms=HOUR_MS,
        from_ms=0,
        to_ms=HOUR_MS,
        hours=1,
        hours_of_unknown_capacity=0,
        hours_of_unknown_owed=0,
        jobs_not_known=0,
        installed_gpu_ms=20,
        available_gpu_ms=10,
        allocated_gpu_ms=5,
        unallocated_gpu_ms=4,
        watched_gpu_ms=0,
        busy_gpu_ms=0,
        owed_gpu_ms=7,
        delivered_gpu_ms=6,
        weekly_gpu_ms=5,
        strict_gpu_ms=4,
        teams_owed=1,
        teams_at_95=0,
        teams=teams,
        next_after=after,
    )


class Pages:
    """In a session's stead: one page after the other."""

    def __init__(self, *pages: FiguresPage) -> None:
        self.pages = list(pages)
        self.asked: list[str | None] = []

    async def ask(self, _row: object, query: FiguresQuery, _reply: object) -> FiguresPage:
        self.asked.append(query.after)
        return self.pages.pop(0)


async def test_teams_of_all_pages() -> None:
    session: Any = Pages(page(team("a"), after="a"), page(team("b")))
    whole = await ledger_figures.whole_figures(session, FiguresQuery(cluster="c1", from_ms=0, to_ms=HOUR_MS))
    assert ([each.budget for each in whole.teams], session.asked) == (["a", "b"], [None, "a"])


def test_csv_has_amounts_and_empty_where_a_row_has_none() -> None:
    assert ledger_figures.COLUMNS[:4] == ("installed_gpu_ms", "available_gpu_ms", "allocated_gpu_ms", "unallocated_gpu_ms")
    lines = ledger_figures.figures_csv(page(team("a", 7, 6))).splitlines()
    assert lines == [
        f"row,budget,{','.join(ledger_figures.COLUMNS)}",
        "all,,20,10,5,4,0,0,7,6,5,4,,",
        "team,a,,,,,0,0,7,6,6,0,9,8",
    ]


@pytest.mark.parametrize(("part", "whole", "shown"), [(0, 0, "-"), (0, 1, "0.0 %"), (999, 1_000, "99.9 %"), (3, 2, "150.0 %")])
def test_a_quotient_is_rounded_down_and_never_made_of_nothing(part: int, whole: int, shown: str) -> None:
    assert reporting.percent(part, whole) == shown


def test_what_is_left_out_is_said() -> None:
    said = {name: (value, sentence) for name, value, sentence in ledger_figures._figures(page())}
    assert said["utilisation"][0] == "-"
    assert "not known" not in said
    assert said["impact, weekly"][0] == "71.4 %"


PACES = [
    ("ahead of now", "at", 2 * HOUR_MS, "100 % by Thursday 1970-01-01 02:00 UTC"),
    ("passed", "at", HOUR_MS, "at 100 % or above"),
    ("far away", "not_soon", None, "not within a week"),
    ("too young", "unknown", None, "not known"),
]


@pytest.mark.parametrize(("sentence", "reaches", "at_ms", "shown"), PACES, ids=[row[0] for row in PACES])
def test_the_pace_in_words(sentence: str, reaches: Any, at_ms: int | None, shown: str) -> None:
    row = PaceRow(
        budget="nlp",
        used_gpu_ms=1,
        entitlement_gpu_ms=2,
        then_ms=None,
        then_used_gpu_ms=None,
        then_entitlement_gpu_ms=None,
        reaches=reaches,
        at_ms=at_ms,
    )
    assert ledger_forecast.words(row, HOUR_MS) == shown
