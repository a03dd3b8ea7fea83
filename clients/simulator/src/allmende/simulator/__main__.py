"""`allmende-simulate` and `python -m allmende.simulator`: the simulator without the rest of Allmende's command line."""

import sys

from allmende.simulator.command.app import DEFAULT_NAME, run


def main() -> None:
    """Run the command."""
    run(sys.argv[1:], DEFAULT_NAME)


if __name__ == "__main__":
    main()
