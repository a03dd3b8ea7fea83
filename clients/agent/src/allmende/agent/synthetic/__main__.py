"""`python -m allmende.agent.synthetic`: one synthetic cluster, with its settings in ALLMENDE_SYNTHETIC_* variables."""

import os

from allmende.agent.program import main
from allmende.agent.synthetic.app import run
from allmende.agent.synthetic.config import SyntheticSettings

if __name__ == "__main__":
    main("synthetic", SyntheticSettings, os.environ, lambda settings: ("agent", settings.cluster), run)
