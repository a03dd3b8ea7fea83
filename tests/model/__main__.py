"""`./dev run python -m tests.model`: explore the protocol deeper than a build does; see tests/README.md."""

import argparse
import json
import logging
import sys

import structlog

from tests.model.explore import SCENES, explore


def main() -> int:
    """Exit status: 0 where every sentence holds, 1 where one is broken; the way there is printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--scene", choices=SCENES, help="one of them; without it all")
    parser.add_argument("--faults", type=int, default=2, help="losses, repeats, kills, failed starts and early ends (default 2)")
    parser.add_argument("--delays", type=int, default=2, help="times out of the usual order; -1: every order (default 2)")
    parser.add_argument("--waits", type=int, default=1, help="timers that fall due while messages are on their way (default 1)")
    parser.add_argument("--most", type=int, default=100_000, help="states of a scene (default 100000)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    wanted = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    broken = False
    for scene in [wanted.scene] if wanted.scene else SCENES:
        found = explore(scene, faults=wanted.faults, waits=wanted.waits, delays=wanted.delays, most=wanted.most)
        broken |= found.broken is not None
        if wanted.json:
            way = None if found.broken is None else found.broken._asdict()
            sys.stdout.write(json.dumps({"scene": scene, **found._asdict(), "broken": way}) + "\n")
            continue
        all_ = "all of them" if found.whole else "the first of them"
        sys.stdout.write(f"{scene}: {found.states:,} states ({all_}), {found.settled:,} followed to rest, {found.seconds:.0f} s\n")
        sys.stdout.write("".join(f"  sometimes {each}\n" for each in found.reached))
        if found.broken is not None:
            sys.stdout.write(f"  BROKEN: {found.broken.sentence}\n" + "".join(f"    {each}\n" for each in found.broken.way))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
