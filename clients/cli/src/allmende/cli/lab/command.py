"""`allmende up`: a lab on this machine until Ctrl-C."""

import asyncio
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allmende.cli import session
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.lab.example import example_tree
from allmende.cli.place import environment, lab_directory, person
from allmende.cli.session import LabOption
from allmende.proto.tree_file import read_tree

if TYPE_CHECKING:
    # Servers and clients, imported when needed: they would slow down the help of every command.
    from allmende.cli.lab.running import Lab

BUDGET_FILE = "budgets.toml"
# As the process agent's setting has it.
MOST_ON_A_MACHINE = 1_024


def up(
    lab: LabOption = None,
    budgets: Annotated[
        Path | None, typer.Option(help="A budget file for the first start; later use `allmende budgets load`.")
    ] = None,
    people: Annotated[
        list[str] | None,
        session.name_option(
            "Somebody else who may use it from now on, with ALLMENDE_USER=NAME; may be given several times.", "NAME"
        ),
    ] = None,
    cluster: Annotated[str, session.name_option("The name of the cluster.", "NAME")] = "c1",
    real: Annotated[
        bool, typer.Option("--real", help="Run real commands on this machine, instead of a synthetic cluster.")
    ] = False,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=1, max=1_000_000, help="GPUs: of the synthetic cluster (default 32), or of this machine (default: what it has)."
        ),
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=1, max=1_024, help="GPUs of one of its nodes.")] = 8,
    seed: Annotated[int, typer.Option(help="What its jobs and nodes do by chance.")] = 1,
) -> None:
    """Start everything on this machine until Ctrl-C.

    Everything is NATS, PostgreSQL, the four services and a synthetic cluster, or this machine itself with --real. The data stay in
    the folder: the next `up` goes on where this one stopped.
    """
    if real and gpus is not None and gpus > MOST_ON_A_MACHINE:
        raise typer.BadParameter(f"one machine has at most {MOST_ON_A_MACHINE} GPUs", param_hint="--gpus")
    folder = lab_directory(lab, environment())
    nodes = {"CLUSTER": cluster}
    if real:
        nodes |= {} if gpus is None else {"GPUS": str(gpus)}
    else:
        nodes |= {"GPUS": str(gpus or 32), "GPUS_PER_NODE": str(gpus_per_node), "SEED": str(seed)}
    session.run(_up(folder, _tree_file(folder, budgets), tuple(people or ()), nodes, real=real))


def _tree_file(folder: Path, budgets: Path | None) -> Path:
    if budgets:
        _check(budgets)
    tree_file = folder / BUDGET_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if budgets:
            shutil.copyfile(budgets, tree_file)
        elif not tree_file.exists():
            tree_file.write_text(example_tree(person()))
    except OSError as error:
        session.fail(CommandFailed(Exit.USAGE, f"nothing can be kept in {folder} ({error.strerror}): choose another with --lab"))
    return tree_file


def _check(budgets: Path) -> None:
    try:
        faults = read_tree(budgets.read_bytes()).faults
    except OSError as error:
        session.fail(CommandFailed(Exit.USAGE, f"{budgets} cannot be read: {error.strerror}"))
    if faults:
        sentence = f"{faults[0].sentence}; see all with `allmende budgets check {budgets}`"
        session.fail(CommandFailed(Exit.USAGE, sentence, faults[0].code))


def _webhook(environ: Mapping[str, str]) -> dict[str, str]:
    """Where this lab's notices are posted, if anywhere: by environment, because a command line shows its secrets to everybody."""
    return {name: environ[name] for name in ("ALLMENDE_BUDGET_WEBHOOK_URL", "ALLMENDE_BUDGET_WEBHOOK_SECRET") if name in environ}


async def _up(folder: Path, tree_file: Path, people: tuple[str, ...], nodes: dict[str, str], *, real: bool) -> None:
    from allmende.cli.lab.running import Plan, running

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    say = _say
    say(f"starting a lab in {folder} ...")
    settings = {"budget": _webhook(environment())}
    plan = Plan(directory=folder, cluster=nodes["CLUSTER"], people=people, tree_file=tree_file, settings=settings, real=real)
    async with running(plan, say) as lab:
        (start_process if real else start_synthetic)(lab, nodes)
        for line in _welcome(lab, nodes):
            say(line)
        await stopped.wait()
        say("stopping; the data stay")


def _say(words: str) -> None:
    # Flushed: somebody may be reading a log while the lab runs.
    print(words, flush=True)  # noqa: T201 the terminal of `up` is its user interface


def start_synthetic(lab: "Lab", settings: dict[str, str]) -> None:
    """Start the synthetic cluster: `settings` are its variables without their prefix."""
    from allmende.chassis.accounts import User

    environment = lab.environment(User("agent", settings["CLUSTER"]))
    environment |= {f"ALLMENDE_SYNTHETIC_{key}": value for key, value in settings.items()}
    environment.setdefault("ALLMENDE_SYNTHETIC_TRUTH_FILE", str(lab.plan.directory / "truth.jsonl"))
    lab.start("synthetic", "allmende.agent.synthetic", environment)


def start_process(lab: "Lab", settings: dict[str, str]) -> None:
    """Start the agent of this machine, whose jobs end with the lab."""
    from allmende.chassis.accounts import User

    ours = {"FOLDER": str(lab.machine), "AT_STOP": "end"} | settings
    environment = lab.environment(User("agent", settings["CLUSTER"]))
    lab.start("process", "allmende.agent.process", environment | {f"ALLMENDE_PROCESS_{key}": value for key, value in ours.items()})


def _welcome(lab: "Lab", nodes: dict[str, str]) -> list[str]:
    where = "" if lab.plan.directory == lab_directory(None, environment()) else f" --lab {lab.plan.directory}"
    return [
        f"running: NATS at {lab.nats.url}, PostgreSQL, budget, ledger, admission, preemptor; logs in {lab.plan.directory / 'logs'}",
        f"cluster {lab.plan.cluster} is {_what(lab, nodes)}",
        f"the first tree of shares is that of {lab.plan.tree_file}; see `allmende budgets{where}`",
        "try, in another terminal:",
        f"  allmende {_first(lab.plan.real, where, _leaf(lab.plan.tree_file))}",
        f"  allmende jobs{where} --watch",
        f"  allmende standings{where}",
        "Ctrl-C stops it; the data stay",
    ]


def _what(lab: "Lab", nodes: dict[str, str]) -> str:
    if lab.plan.real:
        return f"this machine: {nodes.get('GPUS', 'all')} GPUs; it runs real commands as {person()}, and they end with Ctrl-C"
    return f"synthetic: {nodes['GPUS']} GPUs that pretend to compute; it runs `synthetic-job` only"


def _first(real: bool, where: str, leaf: str) -> str:
    if real:
        return f"run{where} --budget {leaf} --gpus 1 --slice 10m -- python train.py"
    return f"submit{where} --budget {leaf} --gpus 8 --slice 10m -- synthetic-job --runtime-ms 1200000"


def _leaf(tree_file: Path) -> str:
    budgets = read_tree(tree_file.read_bytes()).budgets
    charged = [each.budget for each in budgets if person() in each.members]
    return charged[0] if charged else "BUDGET"
