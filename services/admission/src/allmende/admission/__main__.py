"""Starts the service: `python -m allmende.admission [--settings FILE] [run|migrate|settings]`."""

from allmende.admission.app import run
from allmende.admission.config import Settings
from allmende.chassis.boot import main

main("admission", Settings, run)
