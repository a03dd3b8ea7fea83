"""Reading a tree of budgets out of its messages: the digest that says a revision is whole, and paths.

Pure; what makes a tree valid is the budget service's own rule.
"""

import hashlib
from collections.abc import Iterable, Mapping
from operator import attrgetter

import msgspec
from msgspec.structs import fields

from allmende.proto.budget import Budget
from allmende.proto.units import PPM_WHOLE, Ppm

_FIELDS = sorted(fields(Budget), key=lambda field: field.encode_name)
# A budget as the digest reads it, for the encoder's own speed: keys in alphabetical order, and none for a field at its default.
_Hashed = msgspec.defstruct(
    "_Hashed",
    [(it.encode_name, it.type) if it.required else (it.encode_name, it.type, it.default) for it in _FIELDS],
    omit_defaults=True,
)
_values_of = attrgetter(*(field.name for field in _FIELDS))
_name_of = attrgetter("budget")
_encoder = msgspec.json.Encoder(order="deterministic")


def digest(budgets: Iterable[Budget]) -> str:
    """SHA-256 over the budgets in the order of their names: 64 hex digits. Writer and reader must get the same.

    Each is a line of JSON, its keys in alphabetical order. Fields at their default do not count, so that a field added later
    changes no digest of a tree that does not use it. 10 ms for 10,000 budgets, so nobody keeps parts of it.
    """
    lines = [_Hashed(*_values_of(definition)) for definition in sorted(budgets, key=_name_of)]
    return hashlib.sha256(_encoder.encode_lines(lines)).hexdigest()


def is_whole(budgets: Mapping[str, Budget], count: int, expected: str) -> bool:
    """True when these are all budgets of a revision and nothing else: a reader may switch to it (`budget.RevisionComplete`)."""
    return len(budgets) == count and digest(budgets.values()) == expected


def paths(budgets: Mapping[str, Budget]) -> dict[str, tuple[str, ...]]:
    """The path from the root to each budget, both included.

    Raises:
        ValueError: a parent is missing or the parents run in a circle; a published revision never has either.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in budgets:
        trail: list[str] = []
        at: str | None = name
        while at is not None and at not in found:
            if at not in budgets or at in trail:
                raise ValueError(f"budget {name!r} does not hang on a root: {' > '.join(reversed(trail))}")
            trail.append(at)
            at = budgets[at].parent
        base = found[at] if at is not None else ()
        for step in reversed(trail):
            base = (*base, step)
            found[step] = base
    return found


def leaves(budgets: Mapping[str, Budget]) -> frozenset[str]:
    """Budgets without children: what jobs are charged to."""
    parents = {each.parent for each in budgets.values()}
    return frozenset(name for name in budgets if name not in parents)


def covers_slices(leaf: Budget) -> bool:
    """May slices be charged to a leaf? With a share of its own, zero included; unset covers none (contract §2). A root that stands
    alone is the whole, which needs no share.
    """
    return leaf.share_ppm is not None or leaf.parent is None


def share_on(row: Budget, cluster: str | None) -> Ppm | None:
    """The budget's part of its parent on a cluster: the cluster's own share where there is one, else the general (contract §2)."""
    if cluster is not None:
        for own in row.cluster_shares or ():
            if own.cluster == cluster:
                return own.share_ppm
    return row.share_ppm


def named_clusters(budgets: Iterable[Budget]) -> tuple[str, ...]:
    """The clusters of which any budget says a share of its own, in order. On all others the general shares hold."""
    return tuple(sorted({own.cluster for row in budgets for own in row.cluster_shares or ()}))


def effective_share(path: Iterable[str], budgets: Mapping[str, Budget], cluster: str | None) -> tuple[tuple[Ppm, ...], bool]:
    """The shares whose product is the effective share of the last budget on the path, and whether that budget's own is set.

    Unset budgets are transparent (contract §2): they contribute nothing to the product. The root, where unset, is the whole.
    An exact rational: product of the ppm over 10^6 to the power of their number. `cluster` None: where no cluster has its own.
    """
    names = tuple(path)
    shares = tuple(share for name in names if (share := share_on(budgets[name], cluster)) is not None and share != PPM_WHOLE)
    is_set = budgets[names[-1]].share_ppm is not None
    return shares, is_set
