"""The command itself: options in, one run or several, figures out. `allmende simulate` and `allmende-simulate` are the same.

Never reads the environment, and prints nothing but what was asked for: figures on stdout, everything else on stderr.
"""

import io
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperOption

from allmende.simulator.command import options as o
from allmende.simulator.command.ask import DEFAULT_SEED, Ask
from allmende.simulator.command.failures import CommandFailed, Exit

DEFAULT_NAME = "allmende-simulate"

app = typer.Typer(
    name=DEFAULT_NAME,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str], name: str) -> None:
    """Run the command as a program: exits with one of `failures.Exit`, or 2 for a wrong command line.

    The command line of Allmende calls it by the entry point group `allmende.commands`.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter shows its number instead of ending the run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for option in _repeated(arguments):
        typer.echo(f"{option} is given more than once; which one counts is not guessed: say it once", err=True)
        sys.exit(Exit.USAGE)
    try:
        app(args=list(arguments), prog_name=name, obj=shlex.join([*name.split(), *arguments]))
    except OSError as error:
        # A full disk behind `>`; a closed pipe is typer's own case, and files of ours are `Outputs`'.
        typer.echo(f"standard output cannot be written: {error.strerror}", err=True)
        sys.exit(Exit.OUTPUT)


def _repeated(arguments: Sequence[str]) -> list[str]:
    """Options with one value that are given several times: the parser would silently take the last."""
    single = {
        name
        for option in typer.main.get_command(app).params
        if isinstance(option, TyperOption) and not option.multiple and not option.is_flag
        for name in option.opts
    }
    given = Counter(argument.partition("=")[0] for argument in arguments)
    return [name for name, times in given.items() if name in single and times > 1]


@app.command(epilog="Exit codes: 0 done, 2 wrong command line or file, 70 a rule is at fault, 74 could not write, 130 Ctrl-C.")
def simulate(
    context: typer.Context,
    scenario: o.ScenarioOption = None,
    seed: o.SeedOption = DEFAULT_SEED,
    days: o.DaysOption = None,
    load: o.LoadOption = None,
    cluster: o.ClusterOption = None,
    budgets: o.BudgetsOption = None,
    jobs: o.JobsOption = None,
    philly: o.PhillyOption = None,
    gpus: o.GpusOption = None,
    sacct: o.SacctOption = None,
    unit: o.UnitOption = None,
    timezone: o.TimezoneOption = None,
    slice_text: o.SliceOption = None,
    warm_up: o.WarmUpOption = None,
    drain: o.DrainOption = None,
    add_members: o.AddMembersOption = None,
    skip_bad: o.SkipBadOption = False,
    policy: o.PolicyOption = "allmende",
    sets: o.SetOption = None,
    compare: o.CompareOption = None,
    compare_budgets: o.CompareBudgetsOption = None,
    json: o.JsonOption = False,
    csv_dir: o.CsvOption = None,
    html: o.HtmlOption = None,
    quiet: o.QuietOption = False,
    no_cost: o.NoCostOption = False,
    list_scenarios: o.ListScenariosOption = False,
    list_settings: o.ListSettingsOption = False,
) -> None:
    """Run the services' own rules on a virtual clock: a made-up lab, a public trace, or one's own history.

    Ctrl-C stops the clock and gives the figures so far. Guide: docs/guides/simulate.md.
    """
    given = locals()  # before anything else has a name here
    # Imported when needed: the rules of three services would slow down the help.
    from allmende.simulator.command import listing, session

    try:
        if list_scenarios or list_settings:
            listing.show(scenarios=list_scenarios, settings=list_settings, as_json=json)
            return
        code = session.run(_ask(given), str(context.obj))
    except CommandFailed as failed:
        for sentence in failed.sentences:
            typer.echo(sentence, err=True)
        raise typer.Exit(failed.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("stopped before anything was measured", err=True)
        raise typer.Exit(Exit.SIGNAL + 2) from None
    if code:
        raise typer.Exit(code)


def _ask(given: Mapping[str, Any]) -> Ask:
    """The command's arguments as one value. Most have the names of its fields."""
    values: dict[str, Any] = {name: given[name] for name in Ask.__struct_fields__ if name in given}
    values |= {name: tuple(given[name] or ()) for name in ("sets", "compare", "compare_budgets")}
    return Ask(**values | {"slice": given["slice_text"], "cost": not given["no_cost"]})
