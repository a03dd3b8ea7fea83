"""Demand: what each job asks for and when it ended, out of admission's words about it (contract §10).

Every word carries all that it tells, so of two the later stands: words may come twice, late, in any order or not at all, and the
same last word ends in the same demand. Never guesses what no word told.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from allmende.proto.units import Ms

Said: TypeAlias = tuple[Ms, str]
"""When a word was said, and its id: of two words the greater one stands."""


class Want(NamedTuple):
    """What a job asks for. `budget` None: unallocated from the start; `clusters` empty: any."""

    budget: str | None
    submitted_at_ms: Ms
    clusters: tuple[str, ...]
    gpus: int
    gpu_model: str | None
    slice_ms: Ms


class JobEnd(NamedTuple):
    """Nothing more happens to a job. `first_started_at_ms` None: it never started."""

    ended_at_ms: Ms
    outcome: str
    first_started_at_ms: Ms | None


class Word(NamedTuple):
    """What one message says of a job."""

    said: Said
    job: str
    want: Want | None
    end: JobEnd | None


class Demand(NamedTuple):
    """All that is known of a job's demand. `want` None: nobody told yet. `known_from_ms`: when the first word told it."""

    job: str
    want: Want | None = None
    want_said: Said = (-1, "")
    known_from_ms: Ms | None = None
    end: JobEnd | None = None
    end_said: Said = (-1, "")


def learn(known: Mapping[str, Demand], words: Iterable[Word]) -> dict[str, Demand]:
    """The demands that change, as they are after these words."""
    changed: dict[str, Demand] = {}
    for word in words:
        before = changed.get(word.job) or known.get(word.job)
        after = _told(before or Demand(word.job), word)
        if after != before:
            changed[word.job] = after
    return changed


def _told(demand: Demand, word: Word) -> Demand:
    if word.want is not None:
        first = word.said[0] if demand.known_from_ms is None else min(demand.known_from_ms, word.said[0])
        demand = demand._replace(known_from_ms=first)
        if word.said > demand.want_said:
            demand = demand._replace(want=word.want, want_said=word.said)
    if word.end is not None and word.said > demand.end_said:
        demand = demand._replace(end=word.end, end_said=word.said)
    return demand
