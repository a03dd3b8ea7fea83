"""The books of one cluster computed anew from what was heard, batch by batch, by the rules that made them (decision 0035).

Never reads what it is compared with.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import astuple

from allmende.ledger.model import (
    Attempt,
    AttemptKey,
    Counter,
    Ended,
    Fact,
    Granted,
    Limits,
    Posting,
    Protected,
    Reading,
    ReplicaKey,
    Runs,
    Started,
)
from allmende.ledger.rules.attempts import learn
from allmende.ledger.rules.counters import by_counter
from allmende.ledger.rules.posting import Loaded, post
from allmende.ledger.rules.verifying import Difference


class Words(NamedTuple):
    """All that one batch said for a cluster's books, in order within each kind, and the limits it was judged by."""

    limits: Limits
    granted: tuple[Granted, ...]
    started: tuple[Started, ...]
    protected: tuple[Protected, ...]
    ended: tuple[Ended, ...]
    readings: tuple[Reading, ...]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts. Those of two kinds say different things of an attempt, so their order does not matter."""
        return (*self.granted, *self.started, *self.protected, *self.ended)

    @property
    def attempts(self) -> set[str]:
        """Who is spoken of."""
        return {each.attempt for each in (*self.facts, *self.readings)}

    def without(self, attempts: Collection[str]) -> "Words":
        """The same, but for some attempts."""
        return Words(
            self.limits,
            tuple(each for each in self.granted if each.attempt not in attempts),
            tuple(each for each in self.started if each.attempt not in attempts),
            tuple(each for each in self.protected if each.attempt not in attempts),
            tuple(each for each in self.ended if each.attempt not in attempts),
            tuple(each for each in self.readings if each.attempt not in attempts),
        )


def words_by_cluster(facts: Iterable[Fact], runs: Runs, limits: Limits) -> dict[str, Words]:
    """What a batch says, by cluster; counter by counter, because so it is a quarter shorter when it is deflated."""
    parts: dict[str, tuple[list[Granted], list[Started], list[Protected], list[Ended], list[Reading]]]
    parts = defaultdict(lambda: ([], [], [], [], []))
    for fact in facts:
        granted, started, protected, ended, _ = parts[fact.cluster]
        match fact:
            case Granted():
                granted.append(fact)
            case Started():
                started.append(fact)
            case Protected():
                protected.append(fact)
            case Ended():
                ended.append(fact)
    for key, run in runs.items():
        parts[key[0]][4].extend(run)
    return {cluster: Words(limits, *(tuple(each) for each in said)) for cluster, said in sorted(parts.items())}  # type: ignore[arg-type]


class State(NamedTuple):
    """The attempts of a cluster of which more may be said, and all their counters."""

    attempts: tuple[Attempt, ...]
    counters: tuple[Counter, ...]


class Replay:
    """Books that start from a state."""

    def __init__(self, state: State) -> None:
        self.attempts: dict[AttemptKey, Attempt] = {each.key: each for each in state.attempts}
        self.counters: dict[ReplicaKey, dict[int, Counter]] = defaultdict(dict)
        self._replicas: dict[AttemptKey, set[ReplicaKey]] = defaultdict(set)
        self.postings: list[Posting] = []
        self._keep(state.counters)

    def hear(self, words: Words) -> None:
        """Take in a batch."""
        facts, runs = words.facts, by_counter(words.readings)
        names = {(fact.cluster, fact.attempt) for fact in facts} | {key[:2] for key in runs}
        learnt = learn({key: self.attempts[key] for key in names if key in self.attempts}, facts)
        touched = {key[:3] for key in runs}
        touched |= {replica for key in learnt.priced for replica in self._replicas[key]}
        counters = [counter for replica in touched for counter in self.counters[replica].values()]
        entries = post(Loaded(learnt.attempts, counters, learnt.priced), runs, words.limits)
        self.attempts |= learnt.attempts
        self._keep(entries.counters)
        self.postings += entries.postings

    def _keep(self, counters: Iterable[Counter]) -> None:
        for counter in counters:
            replica = (counter.cluster, counter.attempt, counter.replica)
            self.counters[replica][counter.epoch] = counter
            self._replicas[replica[:2]].add(replica)


class Posted(NamedTuple):
    """What two postings have in common when they are the same."""

    attempt: str
    replica: int
    epoch: int
    from_ms: int
    to_ms: int
    gpus: int
    account: str


def differing_postings(computed: Sequence[Posting], kept: Sequence[Posted]) -> Iterator[Difference]:
    """Postings that follow from what was heard and are not there, and those that are there and do not follow."""
    follow = {_posted(each) for each in computed}
    there = set(kept)
    for each in sorted(follow ^ there):
        of = f"{each.attempt}/{each.replica}/{each.epoch}"
        amount = each.gpus * (each.to_ms - each.from_ms)
        what = f"{amount} GPU-ms of {of} from {each.from_ms} to {each.to_ms} for {each.account}"
        if each in follow:
            yield Difference("posting", of, each.from_ms, amount, 0, f"{what} follow from what was heard, and are not posted so")
        else:
            yield Difference("posting", of, each.from_ms, 0, amount, f"{what} are posted, and do not follow from what was heard")


def _posted(each: Posting) -> Posted:
    account = "unallocated" if each.budget is None else f"budget/{each.budget}"
    return Posted(each.attempt, each.replica, each.epoch, each.from_ms, each.to_ms, each.gpus, account)


def differing_counters(replay: Replay, after: State, not_judged: Collection[str]) -> Iterator[Difference]:
    """Counters of granted attempts that are not what follows from what was heard. Who is not in `after` any more is complete."""
    granted = {each.key for each in after.attempts if each.grant is not None and each.attempt not in not_judged}
    for kept in after.counters:
        if (kept.cluster, kept.attempt) not in granted:
            continue
        found = replay.counters.get((kept.cluster, kept.attempt, kept.replica), {}).get(kept.epoch)
        if found is not None and _state_of(found) == _state_of(kept):
            continue
        of = f"{kept.attempt}/{kept.replica}/{kept.epoch}"
        heard_ms = 0 if found is None or found.from_ms is None else found.to_ms - found.from_ms
        kept_ms = 0 if kept.from_ms is None else kept.to_ms - kept.from_ms
        follows = None if found is None else _state_of(found)
        sentence = f"the counter {of} is at {_state_of(kept)}; from what was heard follows {follows}"
        yield Difference("counter", of, kept.since_ms, heard_ms, kept_ms, sentence)


def _state_of(counter: Counter) -> tuple[object, ...]:
    """How far a counter is: all but its key, and the message, which says nothing of the amount."""
    return astuple(counter)[4:-1]
