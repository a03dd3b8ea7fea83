"""`python -m allmende.agent.workload run`: the people of a lab. `tree [--seed N | --trace FILE]`: their budget file, as TOML."""

import argparse
import os
import sys

from allmende.agent.program import main
from allmende.agent.workload.config import WorkloadSettings
from allmende.agent.workload.driver import run
from allmende.agent.workload.tracefile import lab_and_jobs
from allmende.chassis.errors import Misconfigured
from allmende.proto.tree_file import write_tree


def _tree(seed: int, trace: str | None) -> int:
    try:
        lab, _ = lab_and_jobs(seed, trace)
    except Misconfigured as error:
        print(error, file=sys.stderr)
        return 78
    print(write_tree(lab.budgets), end="")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m allmende.agent.workload", description=__doc__)
    parser.add_argument("command", choices=("run", "tree"))
    parser.add_argument("--seed", type=int, default=1, help="tree: of which lab")
    parser.add_argument("--trace", help="tree: the virtual clusters of this trace instead")
    options = parser.parse_args()
    if options.command == "tree":
        sys.exit(_tree(options.seed, options.trace))
    main("workload", WorkloadSettings, os.environ, lambda settings: ("gateway", settings.caller), run)
