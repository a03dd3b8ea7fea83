"""A clock that a test moves by hand."""

import asyncio

from allmende.proto.units import Ms


class ManualClock:
    """Stands still until `advance` or `set`; whoever sleeps wakes when their instant is reached."""

    def __init__(self, now_ms: Ms = 1_700_000_000_000, rate: int = 1) -> None:
        self._now_ms = now_ms
        self._rate = rate
        self._sleepers: list[tuple[Ms, asyncio.Event]] = []

    @property
    def rate(self) -> int:
        """Clock milliseconds per real millisecond."""
        return self._rate

    def now_ms(self) -> Ms:
        """The instant that was set last."""
        return self._now_ms

    async def sleep_until(self, instant_ms: Ms) -> None:
        """Return once the clock was moved to the instant or beyond."""
        if instant_ms <= self._now_ms:
            return
        sleeper = (instant_ms, asyncio.Event())
        self._sleepers.append(sleeper)
        try:
            await sleeper[1].wait()
        finally:
            self._sleepers.remove(sleeper)

    def advance(self, length_ms: Ms) -> None:
        """Let time pass."""
        self.set(self._now_ms + length_ms)

    def set(self, now_ms: Ms) -> None:
        """Move to an instant, never back.

        Raises:
            ValueError: the instant has passed.
        """
        if now_ms < self._now_ms:
            raise ValueError("a clock never goes backwards")
        self._now_ms = now_ms
        for instant_ms, event in self._sleepers:
            if instant_ms <= now_ms:
                event.set()
