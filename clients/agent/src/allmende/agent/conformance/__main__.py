"""`python -m allmende.agent.conformance [OPTIONS] -- COMMAND`: plays the services to an agent and prints a table.

Exit codes: 0 it conforms, 1 it does not, 2 wrong command line, 69 no server can be started.
"""

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
from pathlib import Path

import msgspec

from allmende.agent.conformance.orders import Scripts
from allmende.agent.conformance.play import Play, Result, perform
from allmende.agent.conformance.stage import Stage
from allmende.agent.process.accounts import as_person
from allmende.agent.process.machine import own_account
from allmende.chassis import log
from allmende.chassis.clock import RealClock
from allmende.chassis.errors import Misconfigured

LAST_LINES = 15
NO_SERVER = 69


def main(arguments: list[str]) -> int:
    """Run the suite; its exit code."""
    options = _parser().parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        _parser().error("name the agent's COMMAND, after --")
    log.setup("conformance", "suite", "error")
    with tempfile.TemporaryDirectory(prefix="allmende-conformance-") as folder:
        # Jobs of other accounts pass through to what is theirs.
        Path(folder).chmod(0o711)
        try:
            results, said = asyncio.run(_run(options, command, Path(folder)))
        except Misconfigured as error:
            print(f"allmende agent conformance: {error}", file=sys.stderr)
            return NO_SERVER
    failed = [result for result in results if result.fault]
    if options.json:
        rows = [{"sentence": result.sentence, "fault": result.fault or None} for result in results]
        print(msgspec.json.encode({"conforms": not failed, "cases": rows}).decode())
    else:
        _show(results, said)
    return 1 if failed else 0


async def _run(options: argparse.Namespace, command: list[str], folder: Path) -> tuple[list[Result], str]:
    now_ms = RealClock().now_ms()
    clock = "real" if options.rate == 1 else f"{now_ms}:{now_ms}:{options.rate}"
    stage = Stage(folder, command, os.environ, clock)
    scripts = Scripts(*(tuple(shlex.split(getattr(options, name))) for name in Scripts._fields))
    play = Play(stage, scripts, options.user, {"PATH": os.environ.get("PATH", os.defpath)})
    try:
        await stage.open()
        await stage.start_agent()
        return await perform(play), stage.log.read_text(errors="replace")
    finally:
        await stage.close()


def _show(results: list[Result], said: str) -> None:
    for result in results:
        print(f"FAILED  {result.sentence}\n        {result.fault}" if result.fault else f"ok      {result.sentence}")
    failed = sum(bool(result.fault) for result in results)
    if failed:
        print(f"\n{failed} of {len(results)} cases failed. The agent's last lines:")
        for line in said.splitlines()[-LAST_LINES:]:
            print(f"  {line}")
    else:
        print(f"\nall {len(results)} cases passed")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="allmende agent conformance",
        description="Play the services to an agent, over a NATS server of its own, and judge what it says. COMMAND is started with "
        "ALLMENDE_NATS_URL, ALLMENDE_NATS_SEED_FILE and ALLMENDE_CLOCK, for the cluster c1; in it {folder} is a folder that stays "
        "the same when the agent is killed and started again.",
    )
    parser.add_argument("--quick", default="sleep 0.3", help="a command line that ends with 0 in less than a second")
    parser.add_argument("--long", default="sleep 600", help="one that runs for minutes, and leaves on SIGTERM")
    parser.add_argument("--failing", default="sh -c 'exit 3'", help="one that fails")
    stubborn = "sh -c 'trap \"\" TERM; while :; do sleep 1; done'"
    parser.add_argument("--stubborn", default=stubborn, help="one that ignores SIGTERM")
    parser.add_argument("--user", default=as_person(own_account().name), help="who submits the jobs")
    parser.add_argument("--rate", type=int, default=1, help="clock seconds a second, for agents of simulated clusters")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="how the agent is started")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
