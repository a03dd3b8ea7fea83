"""`allmende up`: a lab on this machine until Ctrl-C."""

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Annotated

import typer

from allmende.chassis.accounts import User
from allmende.cli import session
from allmende.cli.lab.example import example_tree
from allmende.cli.lab.running import Lab, Plan, running
from allmende.cli.place import environment, lab_directory, person
from allmende.cli.session import LabOption

BUDGET_FILE = "budgets.toml"


def up(
    lab: LabOption = None,
    budgets: Annotated[
        Path | None, typer.Option(help="A budget file for the first start; later use `allmende budgets load`.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="The name of the cluster.")] = "c1",
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the synthetic cluster.")] = 32,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of one of its nodes.")] = 8,
    seed: Annotated[int, typer.Option(help="What its jobs and nodes do by chance.")] = 1,
) -> None:
    """Start everything on this machine, with a synthetic cluster, and keep it running until Ctrl-C.

    The data stay in the folder: the next `up` goes on where this one stopped.
    """
    folder = lab_directory(lab, environment())
    synthetic = {"GPUS": str(gpus), "GPUS_PER_NODE": str(gpus_per_node), "SEED": str(seed), "CLUSTER": cluster}
    session.run(_up(folder, _tree_file(folder, budgets), cluster, synthetic))


def _tree_file(folder: Path, budgets: Path | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    tree_file = folder / BUDGET_FILE
    if budgets:
        shutil.copyfile(budgets, tree_file)
    elif not tree_file.exists():
        tree_file.write_text(example_tree(person()))
    return tree_file


async def _up(folder: Path, tree_file: Path, cluster: str, synthetic: dict[str, str]) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    say = print
    say(f"starting a lab in {folder} ...")
    async with running(Plan(directory=folder, cluster=cluster, tree_file=tree_file), say) as lab:
        start_synthetic(lab, synthetic)
        for line in _welcome(lab, synthetic):
            say(line)
        await stopped.wait()
        say("stopping; the data stay")


def start_synthetic(lab: Lab, settings: dict[str, str]) -> None:
    """Start the synthetic cluster: `settings` are its variables without their prefix."""
    environment = lab.environment(User("agent", settings["CLUSTER"]))
    environment |= {f"ALLMENDE_SYNTHETIC_{key}": value for key, value in settings.items()}
    environment.setdefault("ALLMENDE_SYNTHETIC_TRUTH_FILE", str(lab.plan.directory / "truth.jsonl"))
    lab.start("synthetic", "allmende.agent.synthetic", environment)


def _welcome(lab: Lab, synthetic: dict[str, str]) -> list[str]:
    where = "" if lab.plan.directory == lab_directory(None, environment()) else f" --lab {lab.plan.directory}"
    return [
        f"running: NATS at {lab.nats.url}, PostgreSQL, budget, ledger, admission, preemptor; logs in {lab.plan.directory / 'logs'}",
        f"cluster {lab.plan.cluster} is synthetic: {synthetic['GPUS']} GPUs that only pretend to compute.",
        f"the tree of shares came from {lab.plan.tree_file}; change it with `allmende budgets load FILE{where}`",
        "try, in another terminal:",
        f"  allmende submit{where} --budget vision --gpus 8 --slice 10m -- synthetic-job --runtime-ms 1200000",
        f"  allmende queue{where} --watch",
        f"  allmende standings{where}",
        "Ctrl-C stops it.",
    ]
