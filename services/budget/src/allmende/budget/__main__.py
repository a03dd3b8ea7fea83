"""`python -m allmende.budget`."""

from allmende.budget.app import run
from allmende.budget.config import Settings
from allmende.chassis.boot import main

if __name__ == "__main__":
    main("budget", Settings, run)
