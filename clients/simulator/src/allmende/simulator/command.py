"""`allmende simulate`: what would have happened, before it does. Reads files, runs the services' own rules, writes reports.

Never talks to a lab and never changes one.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from allmende.proto.units import format_duration, parse_duration
from allmende.simulator.commands.overrides import described, settings_of
from allmende.simulator.commands.running import Broken, Ran, run
from allmende.simulator.commands.sources import Asked, Make, Wrong, maker
from allmende.simulator.figures import side_by_side
from allmende.simulator.policies.offered import POLICIES
from allmende.simulator.report import csv, html, json, terminal
from allmende.simulator.scenarios import names

WRONG, BROKEN, INTERRUPTED = 2, 70, 130
"""Exit codes: command line or file, a fault in a rule (sysexits.h: EX_SOFTWARE), Ctrl-C."""

Input = "Input (one of --scenario, --jobs, --philly, --sacct)"
Rules = "Policy"
Output = "Output"


def add_to(app: typer.Typer) -> None:
    """Add the command to a command line."""
    app.command()(simulate)


def _said(lengths: dict[str, str | None]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for name, text in lengths.items():
        try:
            found[name] = None if text is None else parse_duration(text)
        except ValueError as error:
            raise Wrong(f"{name} {error}") from error
    return found


def simulate(
    scenario: Annotated[str | None, typer.Option(help="A made-up lab, see --list-scenarios.", rich_help_panel=Input)] = None,
    cluster: Annotated[Path | None, typer.Option(help="Nodes, models, failures (TOML).", rich_help_panel=Input)] = None,
    budgets: Annotated[Path | None, typer.Option(help="The tree of shares (TOML).", rich_help_panel=Input)] = None,
    jobs: Annotated[Path | None, typer.Option(help="A list of jobs (CSV).", rich_help_panel=Input)] = None,
    philly: Annotated[Path | None, typer.Option(help="The Philly trace, a folder or file.", rich_help_panel=Input)] = None,
    sacct: Annotated[Path | None, typer.Option(help="Slurm's accounting, `sacct --parsable2`.", rich_help_panel=Input)] = None,
    seed: Annotated[int, typer.Option(help="Of whatever is drawn by chance.", rich_help_panel=Input)] = 1,
    days: Annotated[int | None, typer.Option(help="Measured days of a scenario.", show_default="30", rich_help_panel=Input)] = None,
    load: Annotated[str | None, typer.Option(help="Demand against capacity, e.g. 2.5.", rich_help_panel=Input)] = None,
    gpus: Annotated[int, typer.Option(min=1, max=1_000_000, help="GPUs to replay --philly on.", rich_help_panel=Input)] = 500,
    unit: Annotated[str, typer.Option(help="What --sacct counts: gpu, or cpu.", rich_help_panel=Input)] = "gpu",
    timezone: Annotated[str, typer.Option(help="Of the times in --sacct.", rich_help_panel=Input)] = "UTC",
    slice_length: Annotated[str, typer.Option("--slice", help="Slice of imported jobs.", rich_help_panel=Input)] = "1h",
    warm_up: Annotated[str | None, typer.Option(help="Not measured, at the beginning of a list.", rich_help_panel=Input)] = None,
    drain: Annotated[str | None, typer.Option(help="Measured after a list's last job.", rich_help_panel=Input)] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Count bad rows instead of refusing.", rich_help_panel=Input)
    ] = False,
    policy: Annotated[str, typer.Option(help="allmende, priority or fifo.", rich_help_panel=Rules)] = "allmende",
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", rich_help_panel=Rules)] = None,
    compare: Annotated[list[str] | None, typer.Option(help="Run this policy too.", rich_help_panel=Rules)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.", rich_help_panel=Output)] = False,
    csv_dir: Annotated[Path | None, typer.Option(help="A folder for tables.", rich_help_panel=Output)] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="One page with plots.", rich_help_panel=Output)] = None,
    no_cost: Annotated[bool, typer.Option("--no-cost", help="Leave out what the run took.", rich_help_panel=Output)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.", rich_help_panel=Output)] = False,
    list_scenarios: Annotated[bool, typer.Option("--list-scenarios", help="Name them and exit.")] = False,
    list_settings: Annotated[bool, typer.Option("--list-settings", help="Name the policy's settings and exit.")] = False,
) -> None:
    """Run the services' own rules on a virtual clock: on a made-up lab, on a list of jobs, or on your own history."""
    out, err = Console(), Console(stderr=True)
    try:
        if list_scenarios:
            _table(out, ("SCENARIO", "WHAT IT IS"), names())
            return
        if policy not in POLICIES:
            raise Wrong(f"no policy is called {policy}; there are {', '.join(POLICIES)}")
        if list_settings:
            _table(out, ("SETTING", "DEFAULT", "WHAT IT DOES"), described(POLICIES[policy].settings))
            return
        lengths = _said({"--slice": slice_length, "--warm-up": warm_up, "--drain": drain})
        make = maker(
            Asked(
                cluster=cluster,
                budgets=budgets,
                jobs=jobs,
                scenario=scenario,
                seed=seed,
                days=days,
                load=load,
                philly=philly,
                gpus=gpus,
                sacct=sacct,
                unit=unit,
                timezone=timezone,
                slice_ms=lengths["--slice"] or 0,
                warm_up_ms=lengths["--warm-up"],
                drain_ms=lengths["--drain"],
                skip_bad=skip_bad,
            )
        )
        _writable(csv_dir, html_file)
        ran = _all(make, policy, set_ or [], compare or [], seed, err, bar=not quiet and err.is_terminal)
    except Wrong as wrong:
        for sentence in wrong.sentences:
            typer.echo(sentence, err=True)
        raise typer.Exit(WRONG) from None
    except Broken as broken:
        at = format_duration(broken.at_ms)
        typer.echo(f"a rule broke an invariant {at} after 1970 on the virtual clock: {broken}", err=True)
        typer.echo(f"the same command with --seed {seed} repeats it; please report it with its input", err=True)
        raise typer.Exit(BROKEN) from None
    first = ran[0]
    spent = None if no_cost else first.cost
    if csv_dir is not None:
        csv.write(csv_dir, first.history, first.figures)
    if html_file is not None:
        html.write(html_file, first.history, first.figures, spent, first.notes)
    comparison = side_by_side({each.history.policy: each.figures for each in ran}) if len(ran) > 1 else None
    if as_json:
        said = json.encode(first.figures, spent) if comparison is None else json.encode_comparison(comparison)
        sys.stdout.buffer.write(said)
        sys.stdout.buffer.flush()
    else:
        terminal.render(first.figures, out, spent, first.notes)
        if comparison is not None:
            terminal.render_comparison(comparison, out)
    if any(each.interrupted for each in ran):
        typer.echo("interrupted: these are the figures so far", err=True)
        raise typer.Exit(INTERRUPTED)


def _all(make: Make, policy: str, words: list[str], others: list[str], seed: int, err: Console, *, bar: bool) -> list[Ran]:
    ran: list[Ran] = []
    for name in dict.fromkeys((policy, *others)):
        if name not in POLICIES:
            raise Wrong(f"no policy is called {name}; there are {', '.join(POLICIES)}")
    for name in dict.fromkeys((policy, *others)):
        offer = POLICIES[name]
        try:
            settings = settings_of(offer.settings, words if name == policy else ())
        except ValueError as error:
            raise Wrong(str(error)) from error
        scenario = make()
        ran.append(run(scenario, offer.make(settings, scenario.cluster), seed, time.process_time, err, bar=bar))
        if ran[-1].interrupted:
            break
    return ran


def _writable(csv_dir: Path | None, html_file: Path | None) -> None:
    """Whoever waits an hour for a run must not learn at its end that the report cannot be written."""
    try:
        if csv_dir is not None:
            csv_dir.mkdir(parents=True, exist_ok=True)
            (csv_dir / "jobs.csv").open("a").close()
        if html_file is not None:
            html_file.parent.mkdir(parents=True, exist_ok=True)
            html_file.open("a").close()
    except OSError as error:
        raise Wrong(f"{error.filename}: cannot be written: {error.strerror}") from error


def _table(out: Console, titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(*titles, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    out.print(table)
