"""A lab of four nodes that are held for 10, 20, 30 and 40 more minutes: where nodes are gathered for gangs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change
from allmende.admission.model.values import Attempt, Job, Node, Reserved, Saves, Terms
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.admission.builders import (
    NOW,
    TERMS,
    attempt,
    job,
    lab,
    node,
)

# On four nodes of 8 GPUs a gang is what needs 16 and more.
GATHER = replace(TERMS, reservations_max=4, reserved_ppm=1_000_000, gang_ppm=500_000, notice_ms=150 * SECOND_MS)
LONG = 2 * HOUR_MS
ALLOWANCE = TERMS.start_timeout_ms


class Held(NamedTuple):
    """An attempt, and when it saved last and at which pace."""

    job: Job
    attempt: Attempt
    saves: Saves | None = None


def held(number: int, where: str, left: float, gpus: int = 8, saves: Saves | None = None, **fields: object) -> Held:
    """GPUs of a node, held for `b` by a slice of two hours that ends in `left` minutes (negative: has ended)."""
    holder = job(100 + number, budget="b", user="u2", gpus_per_replica=gpus, slice_ms=LONG, state="running")
    ends_ms = NOW + round(left * MINUTE_MS)
    started = {"granted_at_ms": ends_ms - LONG, "started_at_ms": ends_ms - LONG, "protected_until_ms": ends_ms}
    running = attempt(number, holder, {where: 1}, **(started | fields))
    return Held(replace(holder, attempt=running.attempt), running, saves)


def unallocated(number: int, where: str) -> Held:
    """A whole node, held by nobody's budget."""
    holder = job(100 + number, budget=None, user="u2", gpus_per_replica=8, slice_ms=0, state="running")
    running = attempt(number, holder, {where: 1})
    return Held(replace(holder, attempt=running.attempt), running)


def gang(number: int, budget: str = "a", shape: str = "2x8", **fields: object) -> Job:
    """A waiting gang."""
    replicas, gpus = (int(part) for part in shape.split("x"))
    return job(number, budget=budget, replicas=replicas, gpus_per_replica=gpus, **fields)


NODES = tuple(node(number) for number in range(1, 5))
# All four nodes are held: n001 for 10 more minutes, n002 for 20 ...
FULL = tuple(held(number, f"n00{number}", 10 * number) for number in range(1, 5))


class Row(NamedTuple):
    """`expected`: for which jobs how many replicas are gathered where, and in how many minutes whoever is left is told to leave."""

    jobs: list[Job]
    expected: dict[int, tuple[dict[str, int], float]]
    standings: Mapping[str, int] = MappingProxyType({})
    holders: tuple[Held, ...] = FULL
    terms: Terms = GATHER
    nodes: tuple[Node, ...] = NODES


def with_lab(row: Row) -> Books:
    books = lab(
        [*(each.job for each in row.holders), *row.jobs],
        row.nodes,
        dict(row.standings),
        attempts=[each.attempt for each in row.holders],
    )
    for each in row.holders:
        if each.saves is not None:
            books.saves[each.attempt.attempt] = each.saves
    return books


def reserved_in(change: Change) -> dict[str, Reserved | None]:
    """The last word of a change about each job that still waits."""
    return {each.job: each.reserved for each in change.jobs if each.state == "queued"}
