"""When a claim may be judged: the preemptor must have heard at least what admission had decided when it raised the claim.

Nothing unknown is read as zero: a cluster without nodes, tree or standings is not empty, it is not known yet.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from allmende.preemptor.model import Claim, Counted, Granted, Progress, Snapshot
from allmende.proto.order import Path
from allmende.proto.standing import Standing, with_holds
from allmende.proto.units import GpuMs


class Readiness(NamedTuple):
    """`judge` now, `wait` for what the sentence names, or drop the claim as `void`."""

    verdict: Literal["judge", "wait", "void"]
    sentence: str = ""


def readiness(claim: Claim, progress: Progress) -> Readiness:
    """May this claim be judged, as far as the cluster goes?"""
    if claim.fence < progress.fence:
        return Readiness("void", f"raised in term {claim.fence}, and term {progress.fence} has begun")
    if progress.grants_heard < claim.newest_grant_seq:
        return Readiness("wait", f"grants up to {progress.grants_heard} of {claim.newest_grant_seq} were heard")
    if progress.tree_revision is None or progress.tree_revision < claim.tree_revision:
        return Readiness("wait", f"the tree of revision {claim.tree_revision} was not heard yet")
    if progress.usage_revision is None or progress.usage_revision < claim.usage_revision:
        return Readiness("wait", f"the standings of revision {claim.usage_revision} were not heard yet")
    if not progress.nodes:
        return Readiness("wait", "no node has reported yet")
    return Readiness("judge")


def budget_readiness(claim: Claim, snapshot: Snapshot) -> Readiness:
    """May this claim be judged, as far as its own budget goes?

    A budget that left the tree has no standing ever: its claim waits until admission, which hears the same tree, withdraws it.
    """
    path = snapshot.paths.get(claim.budget)
    if path is None:
        return Readiness("wait", f"budget {claim.budget} is not in the tree of revision {snapshot.tree_revision}")
    missing = [budget for budget in path if budget not in snapshot.standings]
    return Readiness("wait", f"no standing of {missing[0]} was heard yet") if missing else Readiness("judge")


def standings_with_holds(
    published: Mapping[str, Counted],
    paths: Mapping[str, Path],
    grants: Iterable[Granted],
    planned: Iterable[tuple[str, GpuMs]],
) -> dict[str, Standing]:
    """What budgets stand at when everything decided counts: younger grants, and claims that are planned but not granted.

    Each budget says for itself up to which grant it counts, because a budget that did not change is not published anew.
    """
    holds: list[tuple[Path, GpuMs]] = [(paths[budget], hold) for budget, hold in planned if budget in paths]
    for grant in grants:
        path = paths.get(grant.budget, ())
        uncounted = tuple(each for each in path if each in published and published[each].counted_grants < grant.grant_seq)
        if uncounted:
            holds.append((uncounted, grant.hold_gpu_ms))
    return with_holds({budget: it.standing for budget, it in published.items()}, holds)
