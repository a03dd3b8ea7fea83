"""Gauges become messages: GPUs running per virtual cluster and minute, as an admission and an agent would have told them.

Every run of a constant, non-zero number of GPUs becomes an attempt with one replica of that many GPUs, on the cluster's one node.
Reads the Helios trace, or makes a synthetic one from a seed.
"""

import gzip
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from allmende.proto import admission, agent, budget
from allmende.proto.envelope import Envelope, encode
from allmende.proto.message import Message
from allmende.proto.subjects import BY_MESSAGE, Role, subject_of
from allmende.proto.tree import digest
from allmende.proto.units import HOUR_MS, MINUTE_MS, PPM_WHOLE
from tests.ledger.builders import id_of

CLUSTER = "c1"
NODE = "earth"
TRACE = Path(__file__).parents[3] / "shared" / "traces"
# 2020-05-01T00:00:00Z, the trace's first minute.
ORIGIN_MS = 1_588_291_200_000


class Gauges(NamedTuple):
    """`running[budget][minute]` in GPUs, and how many GPUs each was allotted; `idle` as the source has it, over all budgets."""

    running: Mapping[str, Sequence[int]]
    allotted: Mapping[str, int]
    idle: Sequence[int]

    @property
    def capacity(self) -> int:
        """GPUs in all."""
        return sum(self.allotted.values())

    @property
    def minutes(self) -> int:
        """Length of the trace."""
        return len(self.idle)

    @property
    def end_ms(self) -> int:
        """The end of the last minute."""
        return ORIGIN_MS + self.minutes * MINUTE_MS


def read_helios() -> Gauges:
    """The 16 virtual clusters of Helios Earth in May 2020."""
    running: dict[str, list[int]] = {}
    allotted: dict[str, int] = {}
    idle: list[int] = []
    for path in sorted((TRACE / "helios_earth_vc_ticks").glob("vc*.csv.gz")):
        name = path.name.split(".")[0].lower()
        with gzip.open(path, "rt") as file:
            columns = file.readline().rstrip().split(",")
            at, left = columns.index("running_gpu_num"), columns.index("idle_gpu_num")
            rows = [line.split(",", left + 1) for line in file]
        running[name] = [int(row[at]) for row in rows]
        idle_here = [int(row[left]) for row in rows]
        allotted[name] = running[name][0] + idle_here[0]
        idle = idle_here if not idle else [a + b for a, b in zip(idle, idle_here, strict=True)]
    return Gauges(running, allotted, idle)


def make_gauges(seed: int, minutes: int = 1_440) -> Gauges:
    """A day of four virtual clusters whose use wanders, with spells of nothing."""
    chance = random.Random(seed)
    allotted = {"alpha": 64, "beta": 32, "gamma": 24, "delta": 8}
    running: dict[str, list[int]] = {}
    for name, most in allotted.items():
        level, row = most // 2, []
        while len(row) < minutes:
            level = chance.choice((0, max(0, level - chance.randint(1, 9)), min(most, level + chance.randint(1, 9)), most))
            row += [level] * chance.randint(1, 45)
        running[name] = row[:minutes]
    total = sum(allotted.values())
    return Gauges(running, allotted, [total - sum(column) for column in zip(*running.values(), strict=True)])


class Attempt(NamedTuple):
    """GPUs of one budget from the beginning of minute `first` to the beginning of minute `end`."""

    number: int
    budget: str
    gpus: int
    first: int
    end: int


def attempts_of(gauges: Gauges) -> list[Attempt]:
    """One attempt a run of constant GPUs, numbered in the order of their beginnings."""
    found: list[tuple[int, str, int, int]] = []
    for name, row in gauges.running.items():
        at = 0
        for gpus, run in groupby(row):
            length = sum(1 for _ in run)
            if gpus:
                found.append((at, name, gpus, at + length))
            at += length
    return [Attempt(number, name, gpus, first, end) for number, (first, name, gpus, end) in enumerate(sorted(found), start=1)]


def shares(gauges: Gauges) -> dict[str, int]:
    """Allotted / capacity in parts per million, by largest remainder, so that they sum to the whole."""
    exact = {name: gpus * PPM_WHOLE for name, gpus in gauges.allotted.items()}
    floors = {name: value // gauges.capacity for name, value in exact.items()}
    left = PPM_WHOLE - sum(floors.values())
    most = sorted(exact, key=lambda name: (-(exact[name] % gauges.capacity), name))[:left]
    return {name: floor + (name in most) for name, floor in floors.items()}


def opening(gauges: Gauges) -> Iterator[Message]:
    """The tree and the node, before the first minute."""
    budgets = [budget.Budget(budget="earth")]
    budgets += [budget.Budget(budget=name, parent="earth", share_ppm=ppm) for name, ppm in shares(gauges).items()]
    for each in budgets:
        yield budget.BudgetChanged(budget=each.budget, revision=1, definition=each)
    yield budget.RevisionComplete(
        revision=1, effective_from_ms=ORIGIN_MS, budgets=len(budgets), digest=digest(budgets), author="trace"
    )
    yield agent.NodeReported(
        cluster=CLUSTER, node=NODE, at_ms=ORIGIN_MS, seq=1, installed_gpus=gauges.capacity, healthy_gpus=gauges.capacity
    )


def minutes_of(gauges: Gauges) -> Iterator[tuple[int, list[Message]]]:
    """For each minute its end, and what is said by then: grants and starts, one tick with all counters, ends with their finals."""
    begun: dict[int, list[Attempt]] = {}
    for each in attempts_of(gauges):
        begun.setdefault(each.first, []).append(each)
    running: list[Attempt] = []
    for minute in range(gauges.minutes):
        end_ms = ORIGIN_MS + (minute + 1) * MINUTE_MS
        said: list[Message] = []
        for each in begun.get(minute, ()):
            said += [_granted(each), _started(each)]
            running.append(each)
        counters = tuple(_counter(each, minute + 1) for each in running)
        said.append(agent.UsageTick(cluster=CLUSTER, node=NODE, at_ms=end_ms, counters=counters))
        said += [_ended(each) for each in running if each.end == minute + 1]
        running = [each for each in running if each.end > minute + 1]
        yield end_ms, said


def _granted(each: Attempt) -> Message:
    return admission.JobGranted(
        cluster=CLUSTER,
        job=id_of(each.number + 1_000_000),
        attempt=id_of(each.number),
        user="trace",
        budget=each.budget,
        placement=(admission.Placed(node=NODE, replicas=1),),
        gpus_per_replica=each.gpus,
        slice_ms=HOUR_MS,
        hold_gpu_ms=HOUR_MS * each.gpus,
        priority=0,
        kind="batch",
        resumable=True,
        max_runtime_ms=None,
        granted_at_ms=ORIGIN_MS + each.first * MINUTE_MS,
        grant_seq=each.number,
        fence=1,
        tree_revision=1,
        usage_revision=1,
    )


def _started(each: Attempt) -> Message:
    at_ms = ORIGIN_MS + each.first * MINUTE_MS
    return agent.AttemptStarted(
        cluster=CLUSTER, attempt=id_of(each.number), job=id_of(each.number + 1_000_000), started_at_ms=at_ms
    )


def _ended(each: Attempt) -> Message:
    return agent.AttemptEnded(
        cluster=CLUSTER,
        attempt=id_of(each.number),
        job=id_of(each.number + 1_000_000),
        ended_at_ms=ORIGIN_MS + each.end * MINUTE_MS,
        outcome="finished",
        counters=(_counter(each, each.end),),
    )


def _counter(each: Attempt, minute: int) -> agent.Counter:
    held_ms = (minute - each.first) * MINUTE_MS
    return agent.Counter(
        attempt=id_of(each.number),
        replica=0,
        epoch=1,
        seq=minute - each.first,
        since_ms=ORIGIN_MS + each.first * MINUTE_MS,
        held_ms=held_ms,
        used_gpu_ms=held_ms * each.gpus,
    )


class Parcel(NamedTuple):
    """A message ready to be published: as whom, and what `publish_many` takes."""

    role: Role
    outgoing: tuple[str, str, bytes, None]


def parcel(body: Message, number: int, sent_at_ms: int, copy: str = "") -> Parcel:
    """Seal a body in an envelope with the id of `number`. `copy` makes another Nats-Msg-Id: a copy that the server lets through."""
    message_id = id_of(number)
    envelope = Envelope(id=message_id, type=body.TYPE, version=1, occurred_at_ms=sent_at_ms, sent_at_ms=sent_at_ms, body=body)
    return Parcel(BY_MESSAGE[type(body)].says[0], (subject_of(body), message_id + copy, encode(envelope), None))
