"""The whole of one call: check everything, run each policy in turn, write its files, print figures.

One history is in memory at a time. Nothing runs before all inputs are read and all outputs are begun.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import asdict
from rich.console import Console

from allmende.proto.budget import Budget
from allmende.simulator import scenarios
from allmende.simulator.command import overrides
from allmende.simulator.command.ask import Ask, terms_of
from allmende.simulator.command.cost import Meter
from allmende.simulator.command.failures import Asked, Exit
from allmende.simulator.command.outputs import Outputs
from allmende.simulator.command.playing import play
from allmende.simulator.command.source import Source, source_of, trees_of
from allmende.simulator.figures import Comparison, Cost, Figures, measure, side_by_side
from allmende.simulator.inputs.faults import quote
from allmende.simulator.policies.offered import POLICIES
from allmende.simulator.report import terminal
from allmende.simulator.report.json import figures_said

# Through a pipe: wide enough for what each figure means.
PIPE_WIDTH = 140


class Planned(NamedTuple):
    """A run to be made. `label` is for people, `key` for names of files; no two are the same."""

    label: str
    key: str
    policy: str
    settings: Struct
    tree: tuple[Budget, ...] | None = None


class Ran(NamedTuple):
    """A run that was made."""

    planned: Planned
    figures: Figures
    cost: Cost | None
    notes: tuple[str, ...]


def run(ask: Ask, repeat: str) -> int:
    """Do what was asked for; returns the exit code. `repeat`: the command line, for a report of a fault.

    Raises:
        CommandFailed: the command line, a file or a rule is at fault, or an output could not be written.
    """
    asked = Asked()
    terms = terms_of(ask, [name for name, _ in scenarios.names()], asked)
    plan = _plan(ask, asked)
    asked.check()
    source = source_of(ask, terms)
    plan += _under_other_trees(ask, plan[0].settings)
    outputs = Outputs(ask, [each.key for each in plan])
    try:
        outputs.prepare(ask.inputs, asked)
        asked.check()
        return _run_all(ask, plan, source, outputs, repeat)
    finally:
        outputs.discard()


def _plan(ask: Ask, asked: Asked) -> list[Planned]:
    """The run of `--policy`, then those of `--compare`."""
    for option, name in (("--policy", ask.policy), *(("--compare", name) for name in ask.compare)):
        if name not in POLICIES:
            asked.add(option, f"no policy is called {quote(name)}; there are {', '.join(POLICIES)}")
    if asked.faults:
        return []
    changed = ", ".join(ask.sets)
    first = Planned(
        f"{ask.policy} {changed}" if changed else ask.policy,
        ask.policy,
        ask.policy,
        overrides.override(ask.policy, ask.sets, asked),
    )
    plan = [first]
    for name in ask.compare:
        if name in [each.label for each in plan]:
            asked.add("--compare", f"{name} would run twice; with --set NAME=VALUE the run of --policy differs from it")
        plan.append(Planned(name, name, name, POLICIES[name].settings()))
    for path in sorted({path for path in ask.compare_budgets if ask.compare_budgets.count(path) > 1}):
        asked.add("--compare-budgets", f"{path} is given twice")
    return plan


def _under_other_trees(ask: Ask, settings: Struct) -> list[Planned]:
    names = [path.name for path in ask.compare_budgets]
    labels = [path.name if names.count(path.name) == 1 else str(path) for path in ask.compare_budgets]
    return [
        Planned(f"under {label}", f"budgets-{number}", ask.policy, settings, tree)
        for number, (label, tree) in enumerate(zip(labels, trees_of(ask.compare_budgets), strict=True), start=1)
    ]


def _run_all(ask: Ask, plan: Sequence[Planned], source: Source, outputs: Outputs, repeat: str) -> int:
    ran: list[Ran] = []
    stopped: int | None = None
    for number, planned in enumerate(plan, start=1):
        meter = Meter()
        scenario = source.scenario(planned.tree)
        policy = POLICIES[planned.policy].make(planned.settings, scenario.cluster)
        place = f"{planned.label} ({number} of {len(plan)})" if len(plan) > 1 else planned.label
        history, stopped = play(scenario, policy, ask.seed, place, repeat, bar=not ask.quiet and sys.stderr.isatty())
        cost = meter.read(history.events) if ask.cost else None
        figures = measure(history)
        outputs.write(planned.key, history, figures, scenario.notes)
        ran.append(Ran(planned, figures, cost, scenario.notes))
        if stopped is not None:
            break
    _say(ask, ran)
    if stopped is None:
        return Exit.OK
    left = len(plan) - len(ran)
    more = f"; {left} more run{'s were' if left > 1 else ' was'} not made" if left else ""
    typer.echo(f"stopped early: these are the figures so far{more}", err=True)
    return Exit.SIGNAL + stopped


# -------------------------------------------------------------------------------------------------------------------------- saying


def _say(ask: Ask, ran: Sequence[Ran]) -> None:
    if ask.json:
        typer.echo(_json(ask, ran).decode(), nl=False)
    elif not ask.quiet:
        out = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
        terminal.render(ran[0].figures, out, ran[0].cost, ran[0].notes)
        if len(ran) > 1:
            terminal.render_comparison(_comparison(ran), out)
    # What cannot be written is noticed here, not when the interpreter ends.
    sys.stdout.flush()


def _comparison(ran: Sequence[Ran]) -> Comparison:
    return side_by_side({each.planned.label: each.figures for each in ran})


def _json(ask: Ask, ran: Sequence[Ran]) -> bytes:
    """The first run's figures at the top, what was asked for beside them; further runs under `compared`."""
    said: dict[str, object] = {"scenario": ask.scenario, "seed": ask.seed}
    said |= _run_json(ran[0])
    if len(ran) > 1:
        said["compared"] = {each.planned.label: _run_json(each) for each in ran[1:]}
        said["side_by_side"] = asdict(_comparison(ran))
    return msgspec.json.format(msgspec.json.encode(said), indent=2) + b"\n"


def _run_json(each: Ran) -> dict[str, object]:
    return figures_said(each.figures, each.cost) | {"settings": asdict(each.planned.settings), "notes": each.notes}
