"""Commands that other packages bring: found by entry point when they are called, never imported before.

So the command line runs without them, and they run without it.
"""

from importlib.metadata import entry_points

import typer

from allmende.cli.errors import Exit

GROUP = "allmende.commands"
# Everything after the name belongs to the other package, its --help included.
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def simulate(context: typer.Context) -> None:
    """What would have happened: the services' own rules on a virtual clock (package allmende-simulator)."""
    found = [each for each in entry_points(group=GROUP) if each.name == "simulate"]
    if not found:
        typer.echo("`allmende simulate` comes with the package allmende-simulator, which is not installed here", err=True)
        raise typer.Exit(Exit.UNREACHABLE)
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
    )
    found[0].load()(app)
    app(args=context.args, prog_name="allmende simulate")
