"""`python -m allmende.ledger`."""

from allmende.chassis.boot import main
from allmende.ledger.app import run
from allmende.ledger.config import Settings

if __name__ == "__main__":
    main("ledger", Settings, run)
