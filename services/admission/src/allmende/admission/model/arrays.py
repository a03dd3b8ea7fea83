"""Arrays of jobs of which not all have been made yet: ten thousand at once would keep everybody else waiting (decision 0037)."""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from allmende.admission.model.values import Job
from allmende.proto.ids import following
from allmende.proto.units import Ms
from allmende.proto.user import InArray


class Unfolding(Struct, frozen=True, kw_only=True):
    """An array and how many of its jobs have been made. `template`: the job as it was submitted, and changed since."""

    first: str
    size: int
    made: int
    received_at_ms: Ms
    template: Job

    @property
    def is_whole(self) -> bool:
        """Whether all of its jobs have been made, or will never be."""
        return self.made >= self.size

    def job(self, index: int) -> Job:
        """The job at an index."""
        place = InArray(first=self.first, index=index, size=self.size)
        return replace(self.template, job=following(self.first, index), array=place)

    def next(self, most: int) -> list[Job]:
        """The next jobs to be made."""
        return [self.job(index) for index in range(self.made, min(self.made + most, self.size))]


class Arrays:
    """The unfinished ones, and what the store has to write of them."""

    def __init__(self) -> None:
        self._open: dict[str, Unfolding] = {}
        self._changed: dict[str, Unfolding] = {}

    def load(self, rows: Iterable[Unfolding]) -> list[str]:
        """Fill fresh ones from rows; returns the first job of each."""
        self._open = {each.first: each for each in rows}
        return list(self._open)

    def get(self, first: str) -> Unfolding | None:
        """An unfinished one by its first job."""
        return self._open.get(first)

    def put(self, array: Unfolding) -> None:
        """One is new, or has come further."""
        self._changed[array.first] = array
        if array.is_whole:
            self._open.pop(array.first, None)
        else:
            self._open[array.first] = array

    def keeps(self, name: str) -> bool:
        """Whether a job of an unfinished one has this id, or will have it."""
        return any(each.first <= name <= following(each.first, each.size - 1) for each in self._open.values())

    def drain(self) -> tuple[Unfolding, ...]:
        """Hand over what must be written, once."""
        changed, self._changed = tuple(self._changed.values()), {}
        return changed
