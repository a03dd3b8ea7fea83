"""Demand: what each job asks for and when it ended, out of admission's words about it (contract §10).

Every word carries all that it tells, so of two the later stands: words may come twice, late, in any order or not at all, and the
same last word ends in the same demand. Never guesses what no word told.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
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


class Placing(NamedTuple):
    """One attempt of a job, on whichever cluster. `budget` None: unallocated."""

    cluster: str
    budget: str | None
    granted_at_ms: Ms
    started_at_ms: Ms | None
    ended_at_ms: Ms | None
    outcome: str | None


class AskedJob(NamedTuple):
    """A job whose demand is known, with its attempts in the order of their grants."""

    want: Want
    end: JobEnd | None
    placings: tuple[Placing, ...]

    @property
    def leaf(self) -> str | None:
        """Whose demand it is: its latest grant's; before any, that of the leaf it names with a slice above 0. None: nobody's."""
        if self.placings:
            return self.placings[-1].budget
        return self.want.budget if self.want.slice_ms else None

    @property
    def ended_at_ms(self) -> Ms | None:
        """When it ended; where that word is lost, the end of an attempt that leaves nothing to run."""
        if self.end is not None:
            return self.end.ended_at_ms
        last = self.placings[-1] if self.placings else None
        return last.ended_at_ms if last is not None and last.outcome in ("finished", "failed") else None

    def may_run_on(self, cluster: str) -> bool:
        """Whether it names a cluster, or none at all."""
        return not self.want.clusters or cluster in self.want.clusters


def demanded(job: AskedJob, cluster: str, now_ms: Ms) -> Iterator[tuple[Ms, Ms]]:
    """When a job asked for a cluster's GPUs: from its submission to its end, or now.

    A wait and the attempt that it led to are of that attempt's cluster; a wait that led to none is of every cluster that it names.
    """
    at_ms = job.want.submitted_at_ms
    for placing, following in zip_longest(job.placings, job.placings[1:]):
        until_ms = placing.ended_at_ms
        if following is not None:
            until_ms = following.granted_at_ms if until_ms is None else min(until_ms, following.granted_at_ms)
        elif job.ended_at_ms is not None:
            until_ms = job.ended_at_ms
        until_ms = now_ms if until_ms is None else until_ms
        if placing.cluster == cluster and at_ms < until_ms:
            yield at_ms, until_ms
        at_ms = max(at_ms, until_ms)
    end_ms = now_ms if job.ended_at_ms is None else job.ended_at_ms
    if at_ms < end_ms and job.may_run_on(cluster):
        yield at_ms, end_ms
