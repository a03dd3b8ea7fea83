"""`allmende demo`: the options."""

from pathlib import Path
from typing import Annotated

import typer

from allmende.cli import session
from allmende.cli.demo.plan import DEFAULT_TRACE_FROM, DemoPlan

DEMO_GPUS = 1_024


def demo(
    seconds: Annotated[int, typer.Option(min=5, help="How long it runs, in real seconds, once everything is up.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="The same seed asks for the same jobs.")] = 1,
    rate: Annotated[
        int, typer.Option(min=1, max=3_600, help="How many times as fast the lab's clock runs: 360 makes a minute six hours.")
    ] = 360,
    gpus: Annotated[int, typer.Option(min=8, help="GPUs of the synthetic cluster, eight to a node.")] = DEMO_GPUS,
    trace: Annotated[Path | None, typer.Option(help="Replay a Philly trace (CSV) instead of the closed loop.")] = None,
    trace_from: Annotated[str, typer.Option(help="The day at which the replay begins, YYYY-MM-DD.")] = DEFAULT_TRACE_FROM,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Keep data, logs, truth and postings in this new folder.")] = None,
) -> None:
    """Run everything here under load, then judge it. Ends by itself; Ctrl-C ends it early, as cleanly."""
    # Imported when needed: servers and clients would slow down the help of every other command.
    from allmende.cli.demo.run import run_demo

    if trace is not None and not trace.is_file():
        raise typer.BadParameter(f"{trace} is not a file", param_hint="--trace")
    plan = DemoPlan(
        seconds=seconds, seed=seed, rate=rate, gpus=gpus, trace=trace, trace_from=trace_from, json_file=json_file, folder=folder
    )
    code = session.run(run_demo(plan))
    if code:
        raise typer.Exit(code)
