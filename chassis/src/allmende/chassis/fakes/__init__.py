"""Stand-ins for the outside world. They answer the same suite as the real things (tests/ports)."""

from allmende.chassis.fakes.bus import FakeBus
from allmende.chassis.fakes.clock import ManualClock
from allmende.chassis.fakes.ids import CountingIds

__all__ = ["CountingIds", "FakeBus", "ManualClock"]
