"""`allmende-simulate` and `python -m allmende.simulator`: the command alone, where the rest of Allmende is not installed."""

import typer

from allmende.simulator.command import add_to

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
add_to(app)


def main() -> None:
    """Run the command."""
    app()


if __name__ == "__main__":
    main()
