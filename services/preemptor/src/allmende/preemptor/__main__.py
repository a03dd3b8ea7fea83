"""`python -m allmende.preemptor`: the preemptor as a process."""

from allmende.chassis.boot import main
from allmende.preemptor.app import SERVICE, run
from allmende.preemptor.config import Settings

if __name__ == "__main__":
    main(SERVICE, Settings, run)
