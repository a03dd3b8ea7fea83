"""`allmende agent WORD ...`: the programs of this package, as the command line calls them (entry point `allmende.commands`).

Replaces the process by the program, which reads its own settings: nothing of it is imported here.
"""

import os
import sys
from collections.abc import Sequence

PROGRAMS = {
    "process": "this machine as a cluster; every setting is an option, such as --folder DIR --gpus 8",
    "synthetic": "a cluster of simulated nodes and jobs; settings are ALLMENDE_SYNTHETIC_* variables",
    "conformance": "play the services to an agent and judge it: -- COMMAND",
}
USAGE = 2


def run(arguments: Sequence[str], called: str) -> None:
    """Become the program that the first argument names."""
    word, *rest = arguments or ("--help",)
    if word in PROGRAMS:
        # -P: a file allmende.py in the folder from which somebody calls must not be taken for ours.
        os.execv(sys.executable, [sys.executable, "-P", "-m", f"allmende.agent.{word}", *rest])  # noqa: S606 no shell is wanted
    lines = [f"usage: {called} WORD ...", *(f"  {name:12} {words}" for name, words in PROGRAMS.items())]
    asked = word in ("-h", "--help")
    (sys.stdout if asked else sys.stderr).write("\n".join(lines) + "\n")
    sys.exit(0 if asked else USAGE)
