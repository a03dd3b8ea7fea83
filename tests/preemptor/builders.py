"""Builders for the preemptor's values. Defaults are what most tests do not care about."""

from collections.abc import Iterable, Mapping

from allmende.preemptor.model import Attempt, Claim, Node, Policy, Snapshot
from allmende.proto.order import Path
from allmende.proto.standing import Standing
from allmende.proto.units import HOUR_MS

NOW_MS = 1_800_000_000_000
ENTITLED = 1_000 * HOUR_MS
POLICY = Policy()


def id_of(number: int) -> str:
    """An id whose order is that of the numbers."""
    return f"{number:026d}"


def node(name: str, healthy: int = 8, model: str | None = None, *, heard: bool = True) -> Node:
    """A node."""
    return Node(name, healthy, model, heard)


def attempt(
    name: str,
    budget: str | None,
    held: Mapping[str, int],
    *,
    priority: int = 0,
    protected_for_ms: int | None = -HOUR_MS,
    started_ago_ms: int | None = 2 * HOUR_MS,
    saved_ago_ms: int | None = None,
    leaving: bool = False,
) -> Attempt:
    """An attempt with one replica of one GPU for each GPU; past its slice for an hour unless said otherwise.

    `protected_for_ms` counts from now: 0 is the instant at which the slice ends; None: the start is not confirmed.
    """
    gpus = sum(held.values())
    unconfirmed = protected_for_ms is None
    return Attempt(
        name,
        f"job-of-{name}",
        budget,
        tuple(sorted(held.items())),
        gpus,
        1,
        priority,
        None if unconfirmed or started_ago_ms is None else NOW_MS - started_ago_ms,
        None if protected_for_ms is None else NOW_MS + protected_for_ms,
        () if saved_ago_ms is None else (NOW_MS - saved_ago_ms,) * gpus,
        leaving,
    )


def claim(
    budget: str, replicas: int = 1, gpus: int = 8, *, hold: int = 0, priority: int = 0, model: str | None = None, number: int = 1
) -> Claim:
    """A claim of `replicas` x `gpus`."""
    return Claim("c1", id_of(number), f"job-of-claim-{number}", budget, replicas, gpus, model, HOUR_MS, hold, priority, 0, 1, 1, 1)


def standing(hundredths: int, entitlement: int = ENTITLED) -> Standing:
    """A standing whose ratio is `hundredths / 100`."""
    return Standing(hundredths * entitlement // 100, entitlement)


def snapshot(
    nodes: Iterable[Node],
    attempts: Iterable[Attempt],
    ratios: Mapping[str, int | Standing | None],
    *,
    parents: Mapping[str, str] | None = None,
    promised: Mapping[str, int] | None = None,
) -> Snapshot:
    """A cluster at NOW_MS. `ratios` gives standings in hundredths, None where none was heard; the tree has these budgets and no
    others. They hang on `org` unless `parents` says otherwise."""
    known = {name: standing(it) if isinstance(it, int) else it for name, it in ratios.items() if it is not None}
    standings = {"org": standing(100), **known}
    paths: dict[str, Path] = {}
    for name in ("org", *ratios):
        trail = [name]
        while trail[0] != "org":
            trail.insert(0, (parents or {}).get(trail[0], "org"))
        paths[name] = tuple(trail)
    return Snapshot("c1", NOW_MS, tuple(nodes), tuple(attempts), dict(promised or {}), paths, standings, 1, 1)
