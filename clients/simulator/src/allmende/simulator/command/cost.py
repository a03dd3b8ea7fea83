"""What a run costs on the machine it runs on. The simulator's one reader of the real clock; no decision sees it."""

import resource
import sys
import time
from typing import Final

from allmende.simulator.figures import Cost, cost

# Linux counts in KiB, macOS in bytes.
_UNITS_A_MIB: Final = 1024 * 1024 if sys.platform == "darwin" else 1024


class Meter:
    """Runs from its making on."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def read(self, events: int) -> Cost:
        """So far. The memory is the most that this process ever held, inputs and earlier runs included."""
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _UNITS_A_MIB
        return cost(time.monotonic() - self._began_s, peak_mib, events)
