"""Jobs of one kind that wait, in order: the first of all, and the first that is short enough, both in O(log n).

Never decides whether the first may start.
"""

from bisect import bisect_left

from allmende.proto.units import Ms

# Longer than anything: nobody stands there any more.
_NOBODY: Ms = 2**62
_SMALLEST = 16


class Line:
    """Numbers in ascending order, each with a length; a tree over the places holds the smallest length below each branch."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._leaves = _SMALLEST
        self._shortest: list[Ms] = [_NOBODY] * (2 * _SMALLEST)
        self._alive = 0

    def __len__(self) -> int:
        return self._alive

    def put(self, number: int, length_ms: Ms) -> None:
        """Someone waits under this number. Cost: O(log n), or O(n) where it never stood here and is not the largest."""
        place = bisect_left(self._numbers, number)
        new = place == len(self._numbers) or self._numbers[place] != number
        if new and (place < len(self._numbers) or place == self._leaves):
            self._rebuild(number)
            place = bisect_left(self._numbers, number)
        elif new:
            self._numbers.append(number)
        assert self._shortest[self._leaves + place] == _NOBODY, f"number {number} waits already"
        self._set(place, length_ms)
        self._alive += 1

    def take(self, number: int) -> None:
        """Who waits under this number leaves the line."""
        place = bisect_left(self._numbers, number)
        assert self._shortest[self._leaves + place] != _NOBODY, f"number {number} does not wait"
        self._set(place, _NOBODY)
        self._alive -= 1

    def first(self, at_most_ms: Ms = _NOBODY - 1) -> int | None:
        """The smallest number whose length is at most this; None: there is none."""
        shortest = self._shortest
        if shortest[1] > at_most_ms:
            return None
        at = 1
        while at < self._leaves:
            at *= 2
            if shortest[at] > at_most_ms:
                at += 1
        return self._numbers[at - self._leaves]

    def _set(self, place: int, length_ms: Ms) -> None:
        shortest = self._shortest
        at = self._leaves + place
        shortest[at] = length_ms
        while at > 1:
            at //= 2
            shortest[at] = min(shortest[2 * at], shortest[2 * at + 1])

    def _rebuild(self, number: int) -> None:
        """Forget who left, and make a place for one more number."""
        waiting = {each: self._shortest[self._leaves + place] for place, each in enumerate(self._numbers)}
        waiting = {each: length_ms for each, length_ms in waiting.items() if length_ms != _NOBODY}
        self._numbers = sorted([*waiting, number])
        # Twice as many as stand here, so that the next rebuilding is as far away as this one cost.
        self._leaves = max(_SMALLEST, 1 << (2 * len(self._numbers)).bit_length())
        lengths = [waiting.get(each, _NOBODY) for each in self._numbers]
        self._shortest = [_NOBODY] * self._leaves + lengths + [_NOBODY] * (self._leaves - len(lengths))
        for at in range(self._leaves - 1, 0, -1):
            self._shortest[at] = min(self._shortest[2 * at], self._shortest[2 * at + 1])
