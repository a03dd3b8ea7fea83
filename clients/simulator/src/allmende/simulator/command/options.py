"""The options of the command, as typer wants them: names, sentences, and nothing that decides."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

ScenarioOption: TypeAlias = Annotated[
    str | None, typer.Option(help="A made-up lab by name; --list-scenarios lists them.", metavar="NAME", show_default=False)
]
SeedOption: TypeAlias = Annotated[
    int, typer.Option(min=0, metavar="S", help="The same seed draws the same jobs, failures and leavings.")
]
DaysOption: TypeAlias = Annotated[
    int | None,
    typer.Option(help="Days to be measured, after the scenario's warm-up. [default: 30]", metavar="N", show_default=False),
]
LoadOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Demand in times the capacity, such as 2.5; left out: the scenario's own.", metavar="X", show_default=False),
]
ClusterOption: TypeAlias = Annotated[Path | None, typer.Option(help="Nodes, failures, leaving.", metavar="FILE.toml")]
BudgetsOption: TypeAlias = Annotated[Path | None, typer.Option(help="The tree of shares; left out: by use.", metavar="FILE.toml")]
JobsOption: TypeAlias = Annotated[Path | None, typer.Option(help="Jobs, one a line; needs --cluster.", metavar="FILE.csv")]
PhillyOption: TypeAlias = Annotated[Path | None, typer.Option(help="Microsoft's public history, folder or file.", metavar="PATH")]
GpusOption: TypeAlias = Annotated[
    int | None, typer.Option(help="GPUs for --philly, eight to a node. [default: 500]", metavar="N", show_default=False)
]
SacctOption: TypeAlias = Annotated[Path | None, typer.Option(help="Slurm's accounting: sacct --parsable2.", metavar="FILE")]
UnitOption: TypeAlias = Annotated[
    str | None, typer.Option(help="What --sacct counts: gpu or cpu. [default: gpu]", metavar="UNIT", show_default=False)
]
TimezoneOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Of times in --sacct, such as Europe/Berlin. [default: UTC]", metavar="ZONE", show_default=False)
]
SliceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--slice", help="Slice of imported jobs, at most their runtime. [default: 1h]", metavar="TIME", show_default=False
    ),
]
WarmUpOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Not measured at the beginning of a file, such as 7d. [default: 0]", metavar="TIME", show_default=False),
]
DrainOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Measured after the last job of a file; see docs/guides/simulate-inputs.md.", metavar="TIME", show_default=False
    ),
]
AddMembersOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--add-members/--no-add-members",
        help="Let whoever charges a leaf in a file be its member. [default: yes]",
        show_default=False,
    ),
]
SkipBadOption: TypeAlias = Annotated[bool, typer.Option("--skip-bad", help="Leave rows at fault out, and count them.")]
PolicyOption: TypeAlias = Annotated[str, typer.Option(help="allmende, priority or fifo.", metavar="POLICY")]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting of --policy; may be repeated; --list-settings lists them.", metavar="NAME=VALUE"),
]
CompareOption: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="The same inputs under another policy, side by side; may be repeated.", metavar="POLICY")
]
CompareBudgetsOption: TypeAlias = Annotated[
    list[Path] | None, typer.Option(help="The same jobs under another tree, side by side; may be repeated.", metavar="FILE.toml")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, and nothing else there.")]
CsvOption: TypeAlias = Annotated[Path | None, typer.Option("--csv-dir", help="Jobs, attempts, hours ... as CSV.", metavar="DIR")]
HtmlOption: TypeAlias = Annotated[Path | None, typer.Option(help="One page with plots that needs no network.", metavar="FILE.html")]
QuietOption: TypeAlias = Annotated[bool, typer.Option("--quiet", help="No summary and no progress bar.")]
NoCostOption: TypeAlias = Annotated[
    bool, typer.Option("--no-cost", help="Leave out runtime_s, peak_mib and ms_per_event: then the JSON is the same bytes.")
]
ListScenariosOption: TypeAlias = Annotated[bool, typer.Option("--list-scenarios", help="List the made-up labs and exit.")]
ListSettingsOption: TypeAlias = Annotated[bool, typer.Option("--list-settings", help="List every policy's settings and exit.")]
