"""Ids in the order of their making, the same in every run."""

from allmende.proto.ids import ENTROPY_BYTES, make_id
from allmende.proto.units import Ms


class CountingIds:
    """Counts from `start`; two sources in one test take different starts."""

    def __init__(self, start: int = 1) -> None:
        self._next = start

    def new(self, now_ms: Ms) -> str:
        """The next id for an instant."""
        entropy = self._next.to_bytes(ENTROPY_BYTES, "big")
        self._next += 1
        return make_id(now_ms, entropy)
