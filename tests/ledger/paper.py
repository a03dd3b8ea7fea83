"""Books on paper: the rules alone, without a database, batch by batch. For property tests."""

from collections.abc import Iterable, Mapping, Sequence

from allmende.ledger.model import Attempt, AttemptKey, Counter, Ended, Fact, Fault, Grant, Granted, Limits, Posting, Reading
from allmende.ledger.rules.attempts import learn
from allmende.ledger.rules.counters import by_counter
from allmende.ledger.rules.posting import Loaded, completed, post
from allmende.proto.units import HOUR_MS
from tests.ledger.builders import START_MS, id_of

# Long after anything that tests tell of.
NOW_MS = START_MS + 100 * HOUR_MS
LIMITS = Limits(NOW_MS, 5_000, 300_000)


class Paper:
    """What a ledger would keep in tables."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.attempts: dict[AttemptKey, Attempt] = {}
        self.counters: dict[tuple[str, str, int, int], Counter] = {}
        self.postings: list[Posting] = []
        self.faults: list[Fault] = []
        self.confirmed: set[AttemptKey] = set()

    def hear(self, *said: Fact | Reading) -> None:
        """Take in a batch."""
        facts = [each for each in said if not isinstance(each, Reading)]
        readings = [each for each in said if isinstance(each, Reading)]
        learnt = learn(self.attempts, facts)
        self.attempts |= learnt.attempts
        entries = post(Loaded(self.attempts, list(self.counters.values()), learnt.priced), by_counter(readings), self.limits)
        for counter in entries.counters:
            self.counters[counter.cluster, counter.attempt, counter.replica, counter.epoch] = counter
        self.postings += entries.postings
        self.faults += [*learnt.faults, *entries.faults]
        self.confirmed |= set(completed(self.attempts, self.counters.values(), self.attempts))

    def intervals(self) -> Mapping[tuple[str, int], Sequence[tuple[int, int]]]:
        """What is counted per attempt and replica, posted or not, joined; an overlap fails."""
        counted = [(c.attempt, c.replica, c.from_ms, c.to_ms) for c in self.counters.values() if c.from_ms is not None]
        return _joined(counted)

    def posted(self) -> Mapping[tuple[str, int], Sequence[tuple[int, int]]]:
        """What is posted per attempt and replica, joined; an overlap fails."""
        return _joined((p.attempt, p.replica, p.from_ms, p.to_ms) for p in self.postings)


def _joined(parts: Iterable[tuple[str, int, int, int]]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for attempt, replica, from_ms, to_ms in sorted(parts):
        if from_ms == to_ms:
            continue
        row = found.setdefault((attempt, replica), [])
        assert not row or row[-1][1] <= from_ms, f"counted twice: {attempt}/{replica} at {from_ms}"
        if row and row[-1][1] == from_ms:
            row[-1] = (row[-1][0], to_ms)
        else:
            row.append((from_ms, to_ms))
    return found


def grant(number: int = 1, *, gpus: int = 1, replicas: int = 1, budget: str | None = "nlp", at_ms: int = START_MS) -> Granted:
    """A grant of attempt `number`."""
    grant = Grant(id_of(9), budget, gpus, replicas, HOUR_MS, at_ms, number)
    return Granted(f"grant-{number}", "c1", id_of(number), grant, "bob", (("n1", replicas),))


def end(number: int, at_ms: int, outcome: str = "finished") -> Ended:
    """The end of attempt `number`."""
    return Ended(f"end-{number}", "c1", id_of(number), at_ms, outcome)


def reading(
    held_ms: int,
    seq: int,
    *,
    number: int = 1,
    gpus: int = 1,
    replica: int = 0,
    epoch: int = 1,
    since_ms: int = START_MS,
    used_gpu_ms: int | None = None,
    sent_at_ms: int = NOW_MS,
    final: bool = False,
    cluster: str = "c1",
) -> Reading:
    """A counter of attempt `number`, sent long afterwards."""
    event = f"tick-{number}-{replica}-{epoch}-{seq}"
    used = held_ms * gpus if used_gpu_ms is None else used_gpu_ms
    return Reading(event, cluster, id_of(number), replica, epoch, seq, since_ms, held_ms, used, sent_at_ms, final)
