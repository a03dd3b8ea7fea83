"""The cheapest set of attempts whose going makes room for a gang, node by node. Never asks who may go: every candidate may.

The cost of a set is compared term by term (contract §7): allocated GPUs displaced, then most over-served leaf first, then
GPU-time lost since the last saved checkpoint, then number of attempts, then id.

For candidates that sit on one node each the answer is exact: per node a knapsack says what one more replica costs there, two more,
and so on, and over the nodes these prices are combined (by sorting where a node holds one replica, by dynamic programming
otherwise; beyond the allowed steps by the cheapest price per replica). Gangs couple nodes, so they are searched: they are added one
at a time while that makes the whole cheaper, and in the other direction all are taken and given back one at a time; the cheaper
end wins. The work is bounded by a count of steps, never by time, so that the same snapshot gives the same plan everywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cmp_to_key
from typing import NamedTuple, TypeAlias

from allmende.preemptor.model import NodeGpus
from allmende.preemptor.rules.rooms import capacity

Cost: TypeAlias = int
"""The four terms in one number, the first in the highest digits: sums add up and compare term by term, and quickly."""

# With more leaves, the less over-served ones count as equal in the second term: these are the leaves from which a plan takes first.
RANKED_LEAVES = 128
# Digits wide enough that no sum overflows into the next: 2^21 GPUs in one plan, 2^63 GPU-ms for each of 2^20 attempts.
GPU_BITS = 21
LOST_BITS = 84
ATTEMPT_BITS = 20


def cost_of(gpus: int, rank: int | None, lost_gpu_ms: int, ranks: int, *, loss_first: bool = False) -> Cost:
    """What one attempt's going costs. `rank` of `ranks` leaves, 0 the most over-served; None: unallocated. With `loss_first` the
    second and third term change places.

    The second term falls as more GPUs come from the most over-served leaf, then from the second, and so on: one digit a leaf.
    """
    digits = min(ranks, RANKED_LEAVES)
    if loss_first:
        served = 0 if rank is None else gpus << (GPU_BITS * (digits - 1 - min(rank, digits - 1)))
        displaced = 0 if rank is None else gpus
        return (((((displaced << LOST_BITS) + lost_gpu_ms) << GPU_BITS * digits + 1) - served) << ATTEMPT_BITS) + 1
    allocated = 0
    if rank is not None:
        served = gpus << (GPU_BITS * (digits - 1 - min(rank, digits - 1)))
        allocated = (gpus << (GPU_BITS * digits + 1)) - served
    return (((allocated << LOST_BITS) + lost_gpu_ms) << ATTEMPT_BITS) + 1


class Candidate(NamedTuple):
    """An attempt that may go: where it holds GPUs, and what its going costs."""

    attempt: str
    held: tuple[NodeGpus, ...]
    cost: Cost


class Wanted(NamedTuple):
    """A gang: `replicas`, each with `gpus_per_replica` on one node."""

    replicas: int
    gpus_per_replica: int


class Bundle(NamedTuple):
    """Some attempts and what they cost together. The tuple is in the order in which they were taken."""

    cost: Cost
    members: tuple[Candidate, ...]

    def with_one(self, candidate: Candidate) -> "Bundle":
        """This bundle and one more."""
        return Bundle(self.cost + candidate.cost, (*self.members, candidate))


NOTHING = Bundle(0, ())
Prices: TypeAlias = tuple[Bundle, ...]
"""The cheapest way to gain 1, 2, ... replicas on one node, as many as there are to gain."""


class _Steps:
    """How much work is left. Counts what is computed, so that the same input always stops at the same place."""

    def __init__(self, allowed: int) -> None:
        self.left = allowed

    def take(self, count: int) -> None:
        self.left -= count


class _Field:
    """The free GPUs by node, the candidates on one node each, and the prices of nodes at the levels met so far."""

    def __init__(self, free: Mapping[str, int], singles: Iterable[Candidate], wanted: Wanted, steps: _Steps) -> None:
        self.free = dict(free)
        self.wanted = wanted
        self.steps = steps
        # With gangs gone, fewer are missing; never more.
        self.most = wanted.replicas - capacity(free, wanted.gpus_per_replica)
        self._local: dict[str, list[Candidate]] = {}
        for candidate in singles:
            self._local.setdefault(candidate.held[0][0], []).append(candidate)
        self._prices: dict[tuple[str, int], Prices] = {}

    def cheapest(self, gangs: Sequence[Candidate]) -> tuple[int, Bundle]:
        """The replicas that are still missing and the cheapest bundle when all of `gangs` go."""
        free = after(self.free, gangs)
        bundle = NOTHING
        for gang in gangs:
            bundle = bundle.with_one(gang)
        missing = self.wanted.replicas - capacity(free, self.wanted.gpus_per_replica)
        self.steps.take(len(free))
        if missing <= 0:
            return 0, bundle
        offers = [prices for node in sorted(self._local) if (prices := self._prices_of(node, free[node], missing))]
        missing, locals_ = combine(offers, missing, self.steps)
        return missing, Bundle(bundle.cost + locals_.cost, bundle.members + locals_.members)

    def _prices_of(self, node: str, free: int, missing: int) -> Prices:
        key = (node, free)
        if key not in self._prices:
            self._prices[key] = prices_of_node(free, self._local[node], self.wanted.gpus_per_replica, self.most, self.steps)
        return self._prices[key][:missing]


def after(free: Mapping[str, int], gone: Iterable[Candidate]) -> dict[str, int]:
    """The free GPUs by node once these have left; nodes that the claimant cannot use stay out."""
    result = dict(free)
    for candidate in gone:
        for node, gpus in candidate.held:
            if node in result:
                result[node] += gpus
    return result


def prices_of_node(free: int, local: Sequence[Candidate], gpus_per_replica: int, most: int, steps: _Steps) -> Prices:
    """The cheapest way to gain 1 to `most` replicas on one node: a knapsack over the GPUs that must be freed there."""
    fit_now = max(0, free) // gpus_per_replica
    held = sum(candidate.held[0][1] for candidate in local)
    gains = min(most, max(0, free + held) // gpus_per_replica - fit_now)
    if gains <= 0:
        return ()
    missing = [(fit_now + gain) * gpus_per_replica - free for gain in range(1, gains + 1)]
    if missing[0] == held:
        # The usual case of a whole node: everybody must go, and there is nothing to choose.
        steps.take(len(local))
        return (_together(Bundle(candidate.cost, (candidate,)) for candidate in local),)
    steps.take(len(local) * missing[-1])
    cheapest: list[Bundle | None] = [None] * (missing[-1] + 1)
    cheapest[0] = NOTHING
    for candidate in local:
        gpus = candidate.held[0][1]
        for freed in range(missing[-1], 0, -1):
            before = cheapest[max(0, freed - gpus)]
            if before is not None:
                cheapest[freed] = _cheaper(before, candidate.cost, (candidate,), cheapest[freed])
    # cheapest[n] frees at least n: what reaches beyond the edge was counted at the edge.
    return tuple(bundle for gpus in missing if (bundle := cheapest[gpus]) is not None)


def _cheaper(before: Bundle, cost: Cost, more: tuple[Candidate, ...], rival: Bundle | None) -> Bundle:
    """`before` with `more`, or the rival, whichever costs less; at equal cost the one with the smallest id that the other lacks.

    Both comparisons stay as they are when the same attempts are added to both sides, which is what dynamic programming needs.
    """
    together = before.cost + cost
    if rival is None or together < rival.cost:
        return Bundle(together, before.members + more)
    if together > rival.cost:
        return rival
    ours, theirs = {each.attempt for each in before.members + more}, {each.attempt for each in rival.members}
    if ours != theirs and min(ours ^ theirs) in ours:
        return Bundle(together, before.members + more)
    return rival


def combine(offers: Sequence[Prices], missing: int, steps: _Steps) -> tuple[int, Bundle]:
    """Buy `missing` replicas from nodes. Returns what is still missing when even all together do not have that many."""
    if all(len(prices) == 1 for prices in offers):
        bundles = sorted((prices[0] for prices in offers), key=lambda bundle: (bundle.cost, sorted(bundle.members)))
        steps.take(len(bundles))
        return max(0, missing - len(bundles)), _together(bundles[:missing])
    available = sum(len(prices) for prices in offers)
    if available <= missing:
        return missing - available, _together(prices[-1] for prices in offers)
    work = sum(len(prices) for prices in offers) * missing
    if work <= steps.left:
        steps.take(work)
        return 0, _combine_exactly(offers, missing)
    steps.take(available)
    return 0, _combine_by_price(offers, missing)


def _together(bundles: Iterable[Bundle]) -> Bundle:
    cost = 0
    members: list[Candidate] = []
    for bundle in bundles:
        cost += bundle.cost
        members.extend(bundle.members)
    return Bundle(cost, tuple(members))


def _combine_exactly(offers: Sequence[Prices], missing: int) -> Bundle:
    """Dynamic programming: cheapest[n] gains at least n replicas from the nodes so far."""
    cheapest: list[Bundle | None] = [NOTHING, *[None] * missing]
    for prices in offers:
        for gained in range(missing, 0, -1):
            for gain, bundle in enumerate(prices, start=1):
                before = cheapest[max(0, gained - gain)]
                if before is not None:
                    cheapest[gained] = _cheaper(before, bundle.cost, bundle.members, cheapest[gained])
    found = cheapest[missing]
    assert found is not None, "the nodes together have more replicas than are missing"
    return found


class _Increment(NamedTuple):
    """From one number of replicas on a node to a higher one, at the lowest price per replica."""

    cost: Cost
    gain: int
    node: int
    reached: int


def _combine_by_price(offers: Sequence[Prices], missing: int) -> Bundle:
    """Buy in the order of price per replica, each node along its convex hull. `give_back` mends the last step."""
    increments = [step for node, prices in enumerate(offers) for step in _hull(node, prices)]
    increments.sort(key=cmp_to_key(_by_price))
    reached: dict[int, int] = {}
    for step in increments:
        if missing <= 0:
            break
        reached[step.node] = step.reached
        missing -= step.gain
    return _together(offers[node][count - 1] for node, count in reached.items())


def _by_price(one: _Increment, other: _Increment) -> int:
    ours = (one.cost * other.gain, one.node, one.reached)
    theirs = (other.cost * one.gain, other.node, other.reached)
    return (ours > theirs) - (ours < theirs)


def _hull(node: int, prices: Prices) -> list[_Increment]:
    """The steps of a node whose prices per replica never fall, so that sorting by price keeps them in order."""
    hull: list[_Increment] = []
    for count, bundle in enumerate(prices, start=1):
        step = _Increment(bundle.cost, count, node, count)
        while hull:
            start = hull[-1].reached
            cost = bundle.cost - prices[start - 1].cost
            step = _Increment(cost, count - start, node, count)
            if hull[-1].cost * step.gain <= step.cost * hull[-1].gain:
                break
            hull.pop()
            step = _Increment(bundle.cost, count, node, count)
        hull.append(step)
    return hull


def cheapest_victims(
    free: Mapping[str, int], candidates: Iterable[Candidate], wanted: Wanted, steps: int
) -> tuple[Candidate, ...] | None:
    """The attempts to evict, by id; () when the gang fits already; None when it would not fit if all candidates went.

    `free` has the GPUs by node, negative where more is held than healthy. No member of the result can be given back: without any
    one of them the gang would not fit. The result depends on neither the order of the arguments nor a hash seed.
    """
    ordered = [on_nodes(candidate, free) for candidate in sorted(candidates)]
    everybody = [candidate for candidate in ordered if candidate.held]
    if capacity(free, wanted.gpus_per_replica) >= wanted.replicas:
        return ()
    if capacity(after(free, everybody), wanted.gpus_per_replica) < wanted.replicas:
        return None
    singles = [candidate for candidate in everybody if len(candidate.held) == 1]
    gangs = [candidate for candidate in everybody if len(candidate.held) > 1]
    field = _Field(free, singles, wanted, _Steps(steps))
    ends = [_add_gangs(field, gangs), _return_gangs(field, gangs)] if gangs else [field.cheapest(())[1]]
    sets = [give_back(free, bundle.members, wanted) for bundle in ends if bundle is not None]
    return min(sets, key=lambda members: (sum(each.cost for each in members), members))


def on_nodes(candidate: Candidate, free: Mapping[str, int]) -> Candidate:
    """The candidate with what it holds on the nodes of `free` alone: elsewhere its going helps nobody."""
    return candidate._replace(held=tuple(sorted((node, gpus) for node, gpus in candidate.held if gpus and node in free)))


def _add_gangs(field: _Field, gangs: Sequence[Candidate]) -> Bundle | None:
    """Start without gangs; add the one that helps most, as long as one helps. None: they do not suffice this way."""
    chosen: list[Candidate] = []
    missing, bundle = field.cheapest(chosen)
    rest = sorted(gangs, key=lambda gang: (gang.cost, gang.attempt))
    while rest and field.steps.left > 0:
        best: tuple[tuple[int, Cost], int, Bundle] | None = None
        for index, gang in enumerate(rest):
            if field.steps.left <= 0:
                break
            still_missing, tried = field.cheapest([*chosen, gang])
            if best is None or (still_missing, tried.cost) < best[0]:
                best = ((still_missing, tried.cost), index, tried)
        if best is None or best[0] >= (missing, bundle.cost):
            break
        (missing, _), index, bundle = best
        chosen.append(rest.pop(index))
    return None if missing else bundle


def _return_gangs(field: _Field, gangs: Sequence[Candidate]) -> Bundle:
    """Start with every gang, which is known to suffice; give back the dearest that the whole can do without, one at a time."""
    chosen = sorted(gangs, key=lambda gang: (gang.cost, gang.attempt), reverse=True)
    _, bundle = field.cheapest(chosen)
    for gang in tuple(chosen):
        if field.steps.left <= 0:
            break
        others = [each for each in chosen if each is not gang]
        missing, tried = field.cheapest(others)
        if not missing and tried.cost < bundle.cost:
            chosen, bundle = others, tried
    return bundle


def give_back(free: Mapping[str, int], members: Iterable[Candidate], wanted: Wanted) -> tuple[Candidate, ...]:
    """Return every attempt that turns out unneeded, the dearest first (contract §7). The rest, by id."""
    kept = sorted(members)
    room = after(free, kept)
    fit = capacity(room, wanted.gpus_per_replica)
    for candidate in sorted(kept, key=lambda each: (each.cost, each.attempt), reverse=True):
        without = fit
        for node, gpus in candidate.held:
            here = room[node]
            without += max(0, here - gpus) // wanted.gpus_per_replica - max(0, here) // wanted.gpus_per_replica
        if without >= wanted.replicas:
            kept.remove(candidate)
            fit = without
            for node, gpus in candidate.held:
                room[node] -= gpus
    return tuple(kept)
