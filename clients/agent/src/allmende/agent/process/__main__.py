"""`python -m allmende.agent.process`: this machine as a cluster, with its settings in ALLMENDE_PROCESS_* variables."""

import os

from allmende.agent.process.app import run
from allmende.agent.process.config import ProcessSettings
from allmende.agent.program import main

if __name__ == "__main__":
    main("process", ProcessSettings, os.environ, lambda settings: ("agent", settings.cluster), run)
