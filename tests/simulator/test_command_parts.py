"""The parts of the command: settings by name, files that are whole or absent, and a run that is stopped or at fault."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from allmende.proto.placement import NodeReplicas
from allmende.simulator.command import overrides
from allmende.simulator.command.ask import Ask
from allmende.simulator.command.failures import Asked, CommandFailed
from allmende.simulator.command.outputs import Outputs
from allmende.simulator.command.playing import Played, play
from allmende.simulator.figures import measure
from allmende.simulator.inputs.listed import scenario_from
from allmende.simulator.model import Cluster, Job, NodeSpec
from allmende.simulator.policies import fifo
from allmende.simulator.policies.offered import POLICIES
from allmende.simulator.ports import Action, Grant, Scenario, Stop
from allmende.simulator.report import csv

CLUSTER = Cluster("lab", (NodeSpec("n-1", 8),))

# ---------------------------------------------------------------------------------------------------------------------- settings

SETTINGS: dict[str, tuple[str, str, object]] = {
    "a length": ("allmende", "grace_ms=90s", 90_000),
    "a length of several parts": ("allmende", "window_ms=1d12h", 129_600_000),
    "no length at all": ("allmende", "grace_ms=0", 0),
    "a percentage": ("allmende", "margin_ppm=2.5%", 25_000),
    "a fraction": ("allmende", "margin_ppm=0.1", 100_000),
    "no part at all": ("allmende", "waste_ppm=0", 0),
    "a number": ("allmende", "patience=0", 0),
    "a word": ("allmende", "loss_first=false", False),
    "spaces around": ("allmende", " patience = 7 ", 7),
    "another policy's setting": ("fifo", "backfill_depth=10", 10),
    "more than a whole where that means something": ("priority", "limit_factor_ppm=150%", 1_500_000),
}


@pytest.mark.parametrize("sentence", SETTINGS)
def test_a_setting_is_read_by_its_kind(sentence: str) -> None:
    policy, text, value = SETTINGS[sentence]
    asked = Asked()
    made = overrides.override(policy, [text], asked)
    assert (asked.faults, getattr(made, text.partition("=")[0].strip())) == ([], value)


REFUSED: dict[str, tuple[str, str, str]] = {
    "no value": ("allmende", "grace_ms", "NAME=VALUE"),
    "an empty value": ("allmende", "grace_ms=", "90s"),
    "an empty name": ("allmende", "=5", "margin_ppm"),
    "an unknown name": ("fifo", "margin_ppm=5%", "backfill_depth, grace_ms"),
    "a length without a unit": ("allmende", "grace_ms=120000", "90s"),
    "a part without a sign": ("allmende", "margin_ppm=5", "10%"),
    "a part above the whole": ("allmende", "margin_ppm=101%", "100%"),
    "a negative number": ("allmende", "patience=-1", "whole number"),
    "a number with a point": ("allmende", "patience=1.5", "whole number"),
    "digits of another script": ("allmende", "patience=\u0663", "whole number"),
    "a number without end": ("allmende", f"patience={'9' * 5_000}", "whole number"),
    "no window": ("allmende", "window_ms=0", "5m to 366d"),
    "just below the least window": ("allmende", "window_ms=4m59s", "5m to 366d"),
    "no level": ("priority", "levels=0", "1 to 100"),
    "neither true nor false": ("allmende", "loss_first=maybe", "true nor false"),
    "a control character": ("allmende", "a\nb=1", "'a\\nb'"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_setting_that_cannot_be_read_is_refused_in_a_line(sentence: str) -> None:
    policy, text, said = REFUSED[sentence]
    asked = Asked()
    overrides.override(policy, [text], asked)
    (fault,) = asked.faults
    assert said in fault
    assert "\n" not in fault
    assert len(fault) < 500


def test_every_setting_has_a_sentence_and_its_default_reads_back() -> None:
    for policy, offer in POLICIES.items():
        listed = overrides.listed(policy)
        assert [each.name for each in listed if not each.sentence] == []
        asked = Asked()
        assert overrides.override(policy, [f"{each.name}={each.default}" for each in listed], asked) == offer.settings()
        assert asked.faults == []


# ------------------------------------------------------------------------------------------------------------------------- files


def jobs(count: int = 20) -> list[Job]:
    return [
        Job(
            job=f"j{number}",
            submitted_at_ms=number * 60_000,
            user="ada",
            budget=None,
            replicas=1,
            gpus_per_replica=8,
            runtime_ms=3_600_000,
            slice_ms=0,
        )
        for number in range(count)
    ]


def scenario() -> Scenario:
    made = scenario_from("exercise", CLUSTER, jobs(), ()).value
    assert made is not None
    return made


def prepared(ask: Ask, *inputs: Path) -> tuple[Outputs, list[str]]:
    outputs, asked = Outputs(ask, ["allmende", "fifo"]), Asked()
    outputs.prepare(inputs, asked)
    return outputs, asked.faults


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_first_run_has_the_places_that_were_asked_for_and_others_their_own(tmp_path: Path) -> None:
    (tmp_path / "r.html").write_text("old")
    outputs, faults = prepared(Ask(html=tmp_path / "r.html", csv_dir=tmp_path / "deep" / "out"))
    assert faults == []
    assert (tmp_path / "r.html").read_text() == "old", "nothing is touched before the run is over"
    history = play(scenario(), fifo.Fifo(fifo.Settings(), CLUSTER), 1, "", "", bar=False).history
    for key in ("allmende", "fifo"):
        outputs.write(key, history, measure(history), ())
    outputs.discard()
    tables = [*csv.COLUMNS]
    wanted = ["r.html", "r-fifo.html", "deep", "deep/out", "deep/out/fifo"]
    wanted += [f"deep/out/{name}" for name in tables] + [f"deep/out/fifo/{name}" for name in tables]
    assert names(tmp_path) == sorted(wanted)
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")


def test_a_run_that_came_to_nothing_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine.txt").write_text("mine")
    before = names(tmp_path)
    outputs, faults = prepared(Ask(html=tmp_path / "r.html", csv_dir=tmp_path / "kept" / "new"))
    assert faults == []
    assert names(tmp_path) != before
    outputs.discard()
    assert names(tmp_path) == before


PLACES: dict[str, tuple[Callable[[Path], Ask], str]] = {
    "a page over the jobs": (lambda folder: Ask(html=folder / "jobs.csv"), "is read by this very run"),
    "a page over the jobs by a link": (lambda folder: Ask(html=folder / "link"), "is read by this very run"),
    "tables over the jobs": (lambda folder: Ask(csv_dir=folder), "jobs.csv is read by this very run"),
    "a page that is a folder": (lambda folder: Ask(html=folder), "no ordinary file"),
    "a page that is a device": (lambda folder: Ask(html=Path(os.devnull)), "no ordinary file"),
    "a page in no folder": (lambda folder: Ask(html=folder / "no" / "r.html"), "make it first"),
    "a page below a file": (lambda folder: Ask(html=folder / "jobs.csv" / "r.html"), "make it first"),
    "tables in a file": (lambda folder: Ask(csv_dir=folder / "jobs.csv"), "give a folder"),
    "a name that is too long": (lambda folder: Ask(html=folder / ("x" * 300)), "cannot be written"),
}


@pytest.mark.parametrize("sentence", PLACES)
def test_what_cannot_be_written_is_known_before_the_run(sentence: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("jobs")
    (tmp_path / "link").symlink_to(tmp_path / "jobs.csv")
    ask, said = PLACES[sentence]
    outputs, faults = prepared(ask(tmp_path), tmp_path / "jobs.csv")
    outputs.discard()
    assert any(said in fault for fault in faults), faults
    assert names(tmp_path) == ["jobs.csv", "link"]
    assert (tmp_path / "jobs.csv").read_text() == "jobs"


# ------------------------------------------------------------------------------------------------------------------------- a run


class Restless(fifo.Fifo):
    """A policy that always wants something more."""

    def decide(self, now_ms: int) -> Sequence[Action]:
        super().decide(now_ms)
        return [Stop("nobody", 0)]


class Greedy(fifo.Fifo):
    """A policy that grants everything at once."""

    def submitted(self, job: Job, now_ms: int) -> None:
        self.wanted = job

    def decide(self, now_ms: int) -> Sequence[Action]:
        job = self.__dict__.pop("wanted", None)
        return [Grant(job.job, job.job, None, (NodeReplicas("n-1", 1),), 0)] if job else []

    def started(self, attempt: str, now_ms: int) -> int:
        return now_ms

    def saves(self, attempt: str, every_ms: int, now_ms: int) -> None:
        pass


@pytest.mark.parametrize(("policy", "said"), [(Restless, "KeyError"), (Greedy, "more on n-1 than is free")])
def test_a_fault_in_a_rule_says_where_when_and_how_to_see_it_again(policy: type[fifo.Fifo], said: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        play(scenario(), policy(fifo.Settings(), CLUSTER), 7, "", "allmende simulate --seed 7", bar=False)
    assert failed.value.exit_code == 70
    first, second = failed.value.sentences
    assert said in first
    assert "allmende/simulator/world/engine.py:" in first
    assert "seed 7" in first
    assert second.endswith("allmende simulate --seed 7")


class Interrupted(fifo.Fifo):
    """A policy in whose third hour somebody presses Ctrl-C, in the middle of an instant."""

    number = signal.SIGINT

    def decide(self, now_ms: int) -> Sequence[Action]:
        if now_ms >= scenario().window.begin_ms + 3 * 3_600_000 and not self.__dict__.get("sent"):
            self.sent = True
            os.kill(os.getpid(), self.number)
        return super().decide(now_ms)


class Terminated(Interrupted):
    """The same with SIGTERM."""

    number = signal.SIGTERM


def stopped(policy: type[Interrupted]) -> Played:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    played = play(scenario(), policy(fifo.Settings(), CLUSTER), 1, "", "", bar=False)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    return played


@pytest.mark.parametrize("policy", [Interrupted, Terminated])
def test_a_signal_stops_the_clock_after_a_whole_instant(policy: type[Interrupted]) -> None:
    history, number = stopped(policy)
    assert number == policy.number
    begun, ended = history.window.begin_ms, history.reached_ms
    assert 3 * 3_600_000 <= ended - begun < 4 * 3_600_000
    # No attempt is written twice, and each GPU is held once.
    assert len({run.attempt for run in history.runs}) == len(history.runs)
    assert [run.end for run in history.runs].count("still_running") == 1
