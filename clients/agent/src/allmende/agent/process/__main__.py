"""`python -m allmende.agent.process [--SETTING VALUE ...]`: this machine as a cluster.

Settings are options or ALLMENDE_PROCESS_* variables: `--at-stop end` is ALLMENDE_PROCESS_AT_STOP=end.
"""

import os
import sys

from allmende.agent.process.app import run
from allmende.agent.process.config import ProcessSettings, variables_of
from allmende.agent.program import main

if __name__ == "__main__":
    main("process", ProcessSettings, os.environ | variables_of(sys.argv[1:]), lambda settings: ("agent", settings.cluster), run)
