"""How waiting jobs stand in lines: by kind, so that a pass looks only at those that may fit, however many wait. Decides nothing."""

from typing import NamedTuple, TypeAlias

from allmende.admission.model.values import Shape
from allmende.proto.units import MINUTE_MS, Ms

Turn: TypeAlias = tuple[Ms, str]
"""(submitted_at_ms, job): the order inside a group."""


# Classes of slices double. The unit makes usual slices (15 m, 30 m, 1 h, 2 h, 4 h, 8 h) the shortest of their classes.
_SLICE_UNIT_MS: Ms = 15 * MINUTE_MS // 16


def slice_class(slice_ms: Ms) -> int:
    """Class 0 is below a minute or unallocated; each further class begins at twice the slice."""
    return (slice_ms // _SLICE_UNIT_MS).bit_length()


class Kind(NamedTuple):
    """Waiting jobs of one leaf that fit or fail together, as their slices are of one class (`slice_class`)."""

    shape: Shape
    slice_class: int

    @property
    def slice_ms_least(self) -> Ms:
        """No job of the kind has a shorter slice."""
        return (1 << self.slice_class >> 1) * _SLICE_UNIT_MS

    @property
    def slice_ms_most(self) -> Ms:
        """Every job of the kind has a shorter slice."""
        return (1 << self.slice_class) * _SLICE_UNIT_MS


# An eviction more or less makes no difference yet.
EVICTIONS_ALIKE = 2


class Group(NamedTuple):
    """Waiting jobs of one leaf and kind that stand in line by submission alone."""

    kind: Kind
    user: str
    priority: int
    """Of unallocated jobs: the lower, the more often they were evicted."""


Line: TypeAlias = dict[Kind, dict[Group, list[Turn]]]
"""The waiting jobs of one leaf. A pass looks at the kinds that may fit and at no others, however long the line is."""
