"""docs/policy.md is what the script writes of the kept results, and its words follow the figures."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from allmende.simulator import scenarios
from allmende.simulator.command import overrides
from allmende.simulator.command.failures import Asked
from tests.experiments import frozen, policy
from tests.experiments.page.whole import page
from tests.experiments.results import FIGURES, WAITS, Made, Offline, Result, Results, Team, Waiting, Waits, key
from tests.experiments.table import BASE, BY_NAME, EXPERIMENTS, MAIN

REACHED: dict[str, Any] = {
    **dict.fromkeys(FIGURES, 0),
    "delivered_owed_plain": 0.99,
    "delivered_owed_weekly": 0.97,
    "delivered_owed_strict": 0.5,
    "teams_at_95": 15,
    "teams_owed": 15,
    "worst_team": 0.95,
    "worst_team_name": "video",
    "occupancy": 0.985,
    "lost_fraction": 0.02,
    "evictions_most": 20,
    "promises_made": 7,
    "events": 1_000,
    "peak_mib": 1_023.0,
}


def result(experiment: str = MAIN, seed: int = 1, **changed: Any) -> Result:
    """A run that reaches every goal, just; `changed`: fields, or figures by name."""
    asked = BY_NAME[experiment]
    made = Result(
        experiment=experiment,
        seed=seed,
        version="0" * 12,
        scenario=asked.scenario,
        policy=asked.policy,
        sets=asked.sets,
        days=asked.days,
        cpu_s=1.0,
        figures=REACHED | {name: value for name, value in changed.items() if name in FIGURES},
        waits={name: Waits(4.9, 29.9, 100.0, 10, 0) for name in WAITS},
        teams={"video": Team(80_000, 0.95, 100.0, 90.0)},
        large_waits_s={"a": 50.0},
        waiting=(),
        broken_share=0.5,
        settings={"margin_ppm": 100_000},
    )
    return replace(made, **{name: value for name, value in changed.items() if name not in FIGURES})


def written(*results: Result) -> str:
    """The page of these results."""
    return page({each.key: each for each in results})


def line(text: str, begin: str) -> str:
    """The one line of the page that begins so."""
    found = [each for each in text.splitlines() if each.startswith(begin)]
    assert len(found) == 1, found
    return found[0]


def test_the_page_is_what_the_kept_results_say() -> None:
    kept = Results(policy.DOCS / policy.RESULTS).read()
    said = (policy.DOCS / policy.PAGE).read_text(encoding="utf-8")
    assert said == page(kept), "write it anew: ./dev run python -m tests.experiments.policy --page-only"


# ------------------------------------------------------------------------------------------------------------------------ verdicts


class Row(NamedTuple):
    """The figure's line ends in `verdict` when the run has `changed`; `fifo`: waits of the large jobs there."""

    figure: str
    verdict: str
    changed: dict[str, Any]
    fifo: dict[str, float] | None = None


VERDICTS = {
    "plain at its goal": Row("delivered / owed, plain", "**yes**", {"delivered_owed_plain": 0.99}),
    "plain just below": Row("delivered / owed, plain", "**no**", {"delivered_owed_plain": 0.989999}),
    "weekly just below": Row("delivered / owed, weekly", "**no**", {"delivered_owed_weekly": 0.969999}),
    "all teams served": Row("teams at 95 %", "**yes**", {"teams_at_95": 14, "teams_owed": 14}),
    "one team is not": Row("teams at 95 %", "**no**", {"teams_at_95": 14}),
    "the worst just below": Row("worst team", "**no**", {"worst_team": 0.949999}),
    "occupancy just below": Row("occupancy", "**no**", {"occupancy": 0.984999}),
    "one slice violated": Row("slice violations", "**no**", {"slice_violations": 1}),
    "debug a breath too long": Row("debug jobs, p90", "**no**", {"waits": dict.fromkeys(WAITS, Waits(5.0, 30.0, 99.0, 10, 0))}),
    "lost at its goal": Row("GPU time lost", "**yes**", {}),
    "lost just above": Row("GPU time lost", "**no**", {"lost_fraction": 0.020001}),
    "once too often evicted": Row("evictions of one job", "**no**", {"evictions_most": 21}),
    "a broken promise": Row("promises to large", "**no**", {"promises_broken": 1}),
    "a promise overdue": Row("large jobs starved", "**no**", {"waiting": (Waiting("a", 9.0, 0.5, "promise overdue"),)}),
    "waiting for no longer than a slice": Row(
        "large jobs starved", "**yes**", {"waiting": (Waiting("a", 28_800, 0.5, "waiting"),)}
    ),
    "waiting for longer than a slice": Row("large jobs starved", "**no**", {"waiting": (Waiting("a", 28_801, 0.5, "waiting"),)}),
    "over budget, however long": Row("large jobs starved", "**yes**", {"waiting": (Waiting("a", 1e6, 1.5, "over budget"),)}),
    "an event in a millisecond": Row("one core for", "**yes**", {"cpu_s": 1.0}),
    "an event in more": Row("one core for", "**no**", {"cpu_s": 1.001}),
    "a whole GiB": Row("memory", "**no**", {"peak_mib": 1_024.0}),
    "large jobs as under fifo": Row("256 GPUs and more", "**yes**", {}, {"a": 50.0}),
    "large jobs later than under fifo": Row("256 GPUs and more", "**no**", {}, {"a": 49.0}),
    "only jobs that both had count": Row("256 GPUs and more", "**yes**", {"large_waits_s": {"a": 50.0, "b": 900.0}}, {"a": 50.0}),
    "no such job in both": Row("256 GPUs and more", "not known for seed 1", {}, {"c": 1.0}),
    "fifo was not run": Row("256 GPUs and more", "not known for seed 1", {}),
}


@pytest.mark.parametrize("sentence", VERDICTS)
def test_a_verdict_follows_the_figure(sentence: str) -> None:
    row = VERDICTS[sentence]
    runs = [result(**row.changed)]
    if row.fifo is not None:
        runs.append(result(f"{MAIN}-fifo", large_waits_s=row.fifo))
    assert line(written(*runs), f"| {row.figure}").endswith(f"| {row.verdict} |")


def test_a_verdict_names_the_seeds_that_miss_it() -> None:
    said = written(result(seed=1), result(seed=2, worst_team=0.9), result(seed=3))
    assert line(said, "| worst team (weekly)").endswith("| **no**: not with seed 2 |")


def test_a_difference_counts_only_where_every_seed_shows_it() -> None:
    base = [result(BASE, seed, worst_team=0.9) for seed in (1, 2)]
    both = [result("margin-0", seed, worst_team=0.8, settings={"margin_ppm": 0}) for seed in (1, 2)]
    one = [result("waste-any", seed, worst_team=0.8 if seed == 1 else 0.95, settings={"waste_ppm": 0}) for seed in (1, 2)]
    said = written(*base, *both, *one)
    assert line(said, "| margin-0 | margin_ppm").endswith("worse worst team (0.800 instead of 0.900). |")
    assert line(said, "| waste-any | waste_ppm").endswith("no difference that every seed shows. |")


def test_a_difference_between_two_versions_of_the_rules_is_none() -> None:
    said = written(result(BASE), result("margin-0", version="1" * 12, worst_team=0.1, settings={"margin_ppm": 0}))
    assert line(said, "| margin-0 | margin_ppm").endswith("measured with other rules than what it is held against. |")


def test_what_no_run_reaches_together_is_named() -> None:
    said = written(result(seed=1, worst_team=0.9), result(seed=2, occupancy=0.9))
    assert "| worst team (weekly) | occupancy | 1 run | 1 run |" in said


def test_who_gains_by_parking_is_counted_against_the_busy_time_of_the_twin() -> None:
    teams = {"parked-a": Team(1, 1.0, 91.0, 0.0), "honest-a": Team(1, 1.0, 100.0, 90.0)}
    said = written(result("squatters", teams=teams), result("squatters-priority", teams=teams))
    assert "Under `allmende` the trick pays in 1 of 1 pairs. Under `priority` the trick pays in 1 of 1 pairs." in said
    assert line(said, "| `allmende` | 1 | parked-a").endswith("| **no** |")
    assert line(said, "| `priority` | 1 | parked-a").endswith("| yes |")


def paired(got: float, twin: float) -> dict[str, Team]:
    """The two teams of a pair."""
    return {"gamer-tiny": Team(1, 1.0, got, got), "honest-tiny": Team(1, 1.0, twin, twin)}


# Where nobody games: ratios of 1.1 and 0.9, so two standard errors of two runs are 0.2.
CHANCE = (result("gamers-honest", 1, teams=paired(110, 100)), result("gamers-honest", 2, teams=paired(90, 100)))


@pytest.mark.parametrize(
    ("sentence", "first", "second", "verdict"),
    [
        ("no more than the twin", 120, 80, "yes"),
        ("one seed alone says nothing", 199, 1, "yes"),
        ("more, but no more than chance", 121, 80, "chance"),
        ("up to two standard errors", 120, 119, "chance"),
        ("more than chance", 121, 120, "**no**"),
    ],
)
def test_a_trick_pays_where_it_brings_more_than_chance_does(sentence: str, first: int, second: int, verdict: str) -> None:
    gamed = [result("gamers", seed, teams=paired(got, 100)) for seed, got in ((1, first), (2, second))]
    assert line(written(*CHANCE, *gamed), "| `allmende` | gamer-tiny").endswith(f"| {verdict} |"), sentence


def test_without_the_lab_where_nobody_games_nothing_is_chance() -> None:
    gamed = result("gamers", 1, teams=paired(100.1, 100))
    assert line(written(gamed), "| `allmende` | gamer-tiny").endswith("| **no** |")


def test_a_twin_that_got_nothing_has_no_ratio_and_was_outdone() -> None:
    gamed = result("gamers", 1, teams=paired(5, 0))
    assert (
        line(written(*CHANCE, gamed), "| `allmende` | gamer-tiny")
        == "| `allmende` | gamer-tiny | 1 | 5 | 0 | - | - | - | 1 | **no** |"
    )


def test_what_is_asked_of_the_old_world_is_that_tricks_pay() -> None:
    for got, verdict in ((101, "yes"), (100, "**no**")):
        gamed = result("gamers-priority", 1, teams=paired(got, 100))
        assert line(written(*CHANCE, gamed), "| `priority` | gamer-tiny").endswith(f"| {verdict} |")


def test_what_is_missing_or_shorter_is_said() -> None:
    said = written(result(days=2))
    assert "ai2-lab/2" in line(said, "Measured: 1 run of 2 days.")
    assert "**Shorter than planned:** ai2-lab/1 (2 d)." in said


# --------------------------------------------------------------------------------------------------------------------- experiments


def test_every_experiment_can_be_asked_for() -> None:
    known = {name for name, _sentence in scenarios.names()}
    asked = Asked()
    for each in EXPERIMENTS:
        assert each.scenario in known
        assert not each.base or each.base in BY_NAME
        overrides.override(each.policy, each.sets, asked)
    assert asked.faults == []
    assert [name for name, times in Counter(each.name for each in EXPERIMENTS).items() if times > 1] == []


def test_all_experiments_are_done_in_three_quarters_of_an_hour_on_two_cores() -> None:
    assert sum(each.weight * len(each.seeds) for each in EXPERIMENTS) <= 2 * 45


def test_a_result_is_kept_and_replaced_by_a_newer_one(tmp_path: Path) -> None:
    kept = Results(tmp_path / "policy" / "results.json")
    kept.put(result(seed=2))
    kept.put(result(seed=1))
    kept.put(newer := result(seed=2, worst_team=0.5))
    assert kept.read() == {key(MAIN, 1): result(seed=1), key(MAIN, 2): newer}


def test_only_the_same_code_answers_again() -> None:
    kept, asked = result(), BY_NAME[MAIN]
    assert kept.answers(asked, asked.days, kept.version)
    assert not kept.answers(asked, asked.days, "1" * 12)
    assert not kept.answers(asked, asked.days - 1, kept.version)
    assert not kept.answers(asked._replace(sets=("margin_ppm=0%",)), asked.days, kept.version)


VERSIONS = {
    "a comment changes nothing": ("proto/order.py", "x = 1  # why\n", ("fifo", "allmende"), ()),
    "a docstring changes nothing": ("proto/order.py", '"""What."""\n\nx = 1\n', ("fifo", "allmende"), ()),
    "a statement of all changes all": ("proto/order.py", "x = 2\n", (), ("fifo", "allmende")),
    "a rule of ours changes ours": ("admission/rules/order.py", "x = 2\n", ("fifo",), ("allmende",)),
    "a report changes nothing": ("simulator/report/json.py", "x = 2\n", ("fifo", "allmende"), ()),
}


@pytest.mark.parametrize("sentence", VERSIONS)
def test_the_version_is_that_of_the_statements(sentence: str, tmp_path: Path) -> None:
    name, text, same, other = VERSIONS[sentence]
    path = tmp_path / "allmende" / name
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    before = {each: frozen.version(tmp_path, each) for each in ("fifo", "allmende")}
    path.write_text(text)
    after = {each: frozen.version(tmp_path, each) for each in ("fifo", "allmende")}
    assert {each for each in before if before[each] == after[each]} == set(same)
    assert {each for each in before if before[each] != after[each]} == set(other)


# ------------------------------------------------------------------------------------------------------------------------- offline


def test_the_page_says_where_the_goal_of_occupancy_lies_offline() -> None:
    """Below the schedule, above the bound, or between: said for each limit and seed."""
    said = written(
        result(seed=1, useful=0.98, offline=(Offline(20, 0.99, 0.985, 20), Offline(None, 0.995, 0.99, 150))),
        result(seed=2, useful=0.97, offline=(Offline(20, 0.984999, 0.98, 19), Offline(None, 0.99, 0.984999, 99))),
    )
    assert line(said, "| 1 | 0.985 |").endswith("| 0.980 | 20 | 0.9850 | 20 | 0.9900 | 0.9900 | 150 | 0.9950 |")
    assert line(said, "With at most 20") == (
        "With at most 20 evictions of a job: the schedule holds 0.985 with seed 1; no placement can hold 0.985 with seed 2."
    )
    assert line(said, "With any number") == (
        "With any number of evictions of a job: the schedule holds 0.985 with seed 1; "
        "0.985 lies between schedule and bound with seed 2."
    )


def test_the_page_says_when_and_with_which_commit_runs_were_made() -> None:
    """What is older than the rest is seen by the day and the commit beside its version."""
    said = written(result(seed=1, made=Made("abc1234", "2026-12-02")), result(seed=2, version="1" * 12))
    assert line(said, "| `allmende` | `000000000000` |") == "| `allmende` | `000000000000` | 1 | 2026-12-02 | abc1234 |"
    assert line(said, "| `allmende` | `111111111111` |") == "| `allmende` | `111111111111` | 1 | - | - |"
