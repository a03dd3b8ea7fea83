"""Standings that are kept, not taken: facts are folded in as they happen, and at any instant all budgets can be read.

The same numbers as `standings.take` has of today's tree, to the GPU-ms (contract §1, §3), at a cost that grows neither with history
nor with the number of attempts: what live attempts count is a linear function of time, kept for every budget on the path. Never
reads a clock.

- A live attempt counts `gpus x max(slice, used time)`: its hold wears down as its usage grows, and past the slice only usage grows.
- At each bucket's edge the usage of the bucket is fixed on the path that was in force when it began; the bucket that leaves the
  window is taken off that same path.
- Entitlement is floored for every bucket, so it is no linear function; buckets of equal capacity are taken together.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import gcd, prod

from allmende.ledger.model import BUCKET_MS, Share
from allmende.ledger.rules.tree import succeed
from allmende.proto.budget import Budget
from allmende.proto.standing import Standing
from allmende.proto.units import DAY_MS, PPM_WHOLE, GpuMs, Ms


@dataclass(slots=True, eq=False)
class _Total:
    """What a budget has had and holds at `t`: `fixed + rate x t`, in GPU-ms."""

    fixed: GpuMs = 0
    rate: int = 0


def _add(totals: Iterable[_Total], fixed: GpuMs, rate: int = 0) -> None:
    for each in totals:
        each.fixed += fixed
        each.rate += rate


@dataclass(slots=True, eq=False)
class _Leaf:
    """A budget that attempts are charged to. `totals`: of today's path; empty while the tree does not have it."""

    name: str
    totals: tuple[_Total, ...]
    live_fixed: GpuMs = 0
    """With `live_rate`: what live attempts count beyond whole buckets, as in `_Total`."""
    live_rate: int = 0
    running: int = 0
    """GPUs that are in use."""
    origin: GpuMs = 0
    """Usage of live attempts in the current bucket is `running x t - origin`."""
    posted: GpuMs = 0
    """Usage of ended attempts in the current bucket."""


@dataclass(slots=True, eq=False)
class _Held:
    """A granted attempt that has not ended. `leaf` None: unallocated, counted for nobody."""

    leaf: _Leaf | None
    gpus: int
    slice_ms: Ms
    started_ms: Ms | None = None
    past: bool = False
    """It has used its slice: every further ms counts."""


class _Amounts:
    """Available GPU-ms of past buckets, equal neighbours together. Old ones are forgotten."""

    def __init__(self) -> None:
        self._starts: list[Ms] = []
        self._amounts: list[GpuMs] = []

    def append(self, bucket_ms: Ms, amount: GpuMs, keep_from_ms: Ms) -> None:
        """The next bucket. What ended before `keep_from_ms` will not be asked for again."""
        if not self._amounts or self._amounts[-1] != amount:
            self._starts.append(bucket_ms)
            self._amounts.append(amount)
        while len(self._starts) > 1 and self._starts[1] <= keep_from_ms:
            del self._starts[0], self._amounts[0]

    def owed(self, from_ms: Ms, to_ms: Ms, part: int, whole: int) -> GpuMs:
        """The sum of `floor(amount x part / whole)` over the buckets of `[from_ms, to_ms)`, both on edges."""
        total = 0
        number = bisect_right(self._starts, from_ms)
        while from_ms < to_ms:
            stop_ms = min(to_ms, self._starts[number]) if number < len(self._starts) else to_ms
            total += (stop_ms - from_ms) // BUCKET_MS * (self._amounts[number - 1] * part // whole)
            from_ms = stop_ms
            number += 1
        return total


class _Term:
    """One share of a budget while it is in force, and what was owed for it in the window (contract §3, `rules.entitlement`).

    Whole buckets are `[_counted_from_ms, _counted_to_ms)`; a bucket that the share's beginning or end cuts is a piece by itself.
    """

    __slots__ = (
        "_counted_from_ms",
        "_counted_to_ms",
        "_owed",
        "_pieces",
        "from_area",
        "from_ms",
        "part",
        "totals",
        "until_ms",
        "whole",
    )

    def __init__(self, share: Share, totals: tuple[_Total, ...], from_area: GpuMs) -> None:
        """`from_area`: available GPU-ms from the beginning of time to the share's."""
        part, whole = (prod(share.ppm), PPM_WHOLE ** len(share.ppm)) if share.covers else (0, 1)
        divisor = gcd(part, whole)  # the same quotient of smaller integers
        self.part, self.whole = part // divisor, whole // divisor
        self.totals = totals
        self.from_ms = share.from_ms
        self.until_ms: Ms | None = None
        self.from_area = from_area
        self._pieces: list[tuple[Ms, GpuMs]] = []
        self._owed = 0
        self._counted_from_ms = self._counted_to_ms = -(-share.from_ms // BUCKET_MS) * BUCKET_MS

    def cut(self, bucket_ms: Ms, amount: GpuMs) -> None:
        """The share held only in a part of the bucket, in which `amount` was available."""
        self._pieces.append((bucket_ms, amount * self.part // self.whole))

    def owed(self, amounts: _Amounts, from_ms: Ms, to_ms: Ms) -> GpuMs:
        """What is owed over the buckets of `[from_ms, to_ms)`, both on edges and never earlier than when last asked."""
        begin_ms = max(self._counted_from_ms, from_ms)
        end_ms = to_ms if self.until_ms is None else min(to_ms, self.until_ms - self.until_ms % BUCKET_MS)
        if self._counted_to_ms <= begin_ms:
            # Nothing that was counted is still in the window.
            self._owed, self._counted_from_ms, self._counted_to_ms = 0, begin_ms, begin_ms
        self._owed -= amounts.owed(self._counted_from_ms, begin_ms, self.part, self.whole)
        self._owed += amounts.owed(self._counted_to_ms, end_ms, self.part, self.whole)
        self._counted_from_ms, self._counted_to_ms = begin_ms, max(self._counted_to_ms, end_ms)
        self._pieces = [piece for piece in self._pieces if piece[0] >= from_ms]
        return self._owed + sum(owed for _, owed in self._pieces)


@dataclass(slots=True, eq=False)
class _Account:
    """A budget of today's tree. `owed`: over the window without the current bucket, as of the edge `owed_at_ms`; -1: never."""

    total: _Total
    terms: list[_Term]
    owed: GpuMs = 0
    owed_at_ms: Ms = -1


class Rolling:
    """The standings of one cluster, folded from facts in non-decreasing time. Reading moves time on as well.

    A fact costs O(depth of the tree), a change of the tree O(budgets); a bucket's edge O(leaves charged in the buckets that enter
    and leave); reading one budget O(1), or O(changes of capacity) since it was read in another bucket.

    Raises:
        ValueError: `length_ms` holds no whole bucket; or, in any method, a time before that of the last fact or reading.
        KeyError: an attempt that did not begin or has ended.
    """

    def __init__(self, *, length_ms: Ms = 7 * DAY_MS, slice_cap_ms: Ms, cluster: str = "") -> None:
        """`length_ms`: the look-back, rounded down to whole buckets. `slice_cap_ms`: the cluster's, for the entitlement's floor.

        `cluster`: its name, where the tree may hold shares of its own.
        """
        if length_ms < BUCKET_MS:
            raise ValueError(f"a look-back of {length_ms} ms is shorter than a bucket of {BUCKET_MS} ms")
        self._length_ms = length_ms // BUCKET_MS * BUCKET_MS
        self._slice_cap_ms = slice_cap_ms
        self._cluster = cluster
        self._now_ms: Ms = -1
        self._bucket_ms: Ms = 0
        """Where the current bucket begins, `_edge_ms` where it ends, `_from_ms` where the window begins."""
        self._edge_ms: Ms = 0
        self._from_ms: Ms = 0
        # Capacity: GPUs since an instant, and GPUs just before it.
        self._available: int | None = None
        self._available_before: int | None = None
        self._available_since_ms: Ms = 0
        self._since_area: GpuMs = 0
        self._bucket_area: GpuMs = 0
        self._amounts = _Amounts()
        # The tree.
        self._shares: dict[str, Share] = {}
        self._terms: dict[str, list[_Term]] = {}
        self._young: list[_Term] = []
        self._closed: deque[tuple[Ms, str]] = deque()
        self._totals: dict[str, _Total] = {}
        self._accounts: dict[str, _Account] = {}
        # Usage.
        self._leaves: dict[str, _Leaf] = {}
        self._busy: dict[str, _Leaf] = {}
        self._attempts: dict[str, _Held] = {}
        self._slice_ends: list[tuple[Ms, str]] = []
        self._buckets: deque[tuple[Ms, dict[str, GpuMs]]] = deque()

    # ------------------------------------------------------------------------------------------------------------------ facts

    def tree(self, definitions: Mapping[str, Budget], revision: int, at_ms: Ms) -> None:
        """The budgets of a revision are in force from `at_ms` on. Charges stay on the path at the beginning of their bucket."""
        self._advance(at_ms)
        change = succeed(self._shares, definitions, revision, at_ms, self._cluster)
        changed = dict.fromkeys((*change.ended, *(share.budget for share in change.begun)))
        moved = [self._leaves[name] for name in changed if name in self._leaves]
        # Charges from before a budget is known go along its first path: they move when that is new, or replaced as it begins.
        anew = [leaf for leaf in moved if leaf.name not in self._terms or self._terms[leaf.name][0].from_ms == at_ms]
        for leaf in anew:
            self._spread(leaf, -1)
        for name in change.ended:
            self._close(name, at_ms)
        for share in change.begun:
            self._begin(share)
        self._accounts = {
            name: _Account(self._totals.setdefault(name, _Total()), self._terms[name]) for name in sorted(self._shares)
        }
        for leaf in moved:
            _add(leaf.totals, -leaf.live_fixed, -leaf.live_rate)
            leaf.totals = self._today(leaf.name)
            _add(leaf.totals, leaf.live_fixed, leaf.live_rate)
        for leaf in anew:
            self._spread(leaf, 1)

    def capacity(self, installed: int, available: int, at_ms: Ms) -> None:
        """`available` healthy GPUs from `at_ms` on. As for `take`, the capacity at an instant is that just before it."""
        assert 0 <= available <= installed, "healthy GPUs are installed ones"
        self._advance(at_ms)
        area = self._area(at_ms)
        if self._available is None or at_ms > self._available_since_ms:
            self._available_before = self._available
        self._available, self._available_since_ms, self._since_area = available, at_ms, area

    def began(self, attempt: str, leaf: str | None, gpus: int, slice_ms: Ms, granted_at_ms: Ms) -> None:
        """An attempt was granted `gpus` in all; `leaf` None: unallocated. The hold of its whole slice counts at once."""
        assert attempt not in self._attempts, f"attempt {attempt} began twice"
        self._advance(granted_at_ms)
        charged = None if leaf is None else self._leaf(leaf)
        self._attempts[attempt] = _Held(charged, gpus, slice_ms)
        if charged is not None:
            self._count(charged, gpus * slice_ms, 0)

    def started(self, attempt: str, at_ms: Ms) -> None:
        """All its replicas run: usage begins, and wears the hold down."""
        self._advance(at_ms)
        held = self._attempts[attempt]
        assert held.started_ms is None, f"attempt {attempt} started twice"
        held.started_ms = at_ms
        leaf = held.leaf
        if leaf is None:
            return
        leaf.running += held.gpus
        leaf.origin += held.gpus * at_ms
        self._busy[leaf.name] = leaf
        heappush(self._slice_ends, (at_ms + held.slice_ms, attempt))

    def renewed(self, attempt: str, slice_ms_more: Ms) -> None:
        """Its slice is longer by so much, counted from its start as ever (contract §6)."""
        held = self._attempts[attempt]
        before = _counts(held)
        held.slice_ms += slice_ms_more
        if held.started_ms is not None:
            # If even the longer slice is used up, its end passes again with the next move of time.
            held.past = False
            heappush(self._slice_ends, (held.started_ms + held.slice_ms, attempt))
        if held.leaf is not None:
            after = _counts(held)
            self._count(held.leaf, after[0] - before[0], after[1] - before[1])

    def ended(self, attempt: str, at_ms: Ms) -> None:
        """No replica runs any more: what is left of the hold is given back. One that never started was never charged."""
        self._advance(at_ms)
        held = self._attempts.pop(attempt)
        leaf = held.leaf
        if leaf is None:
            return
        fixed, rate = _counts(held)
        if held.started_ms is None:
            self._count(leaf, -fixed, -rate)
            return
        begun_ms = max(held.started_ms, self._bucket_ms)
        self._count(leaf, held.gpus * (begun_ms - held.started_ms) - fixed, -rate)
        leaf.running -= held.gpus
        leaf.origin -= held.gpus * begun_ms
        used = held.gpus * (at_ms - begun_ms)
        leaf.posted += used
        _add(self._along(leaf.name, self._bucket_ms), used)

    # ---------------------------------------------------------------------------------------------------------------- reading

    def standing(self, budget: str, now_ms: Ms) -> Standing | None:
        """How a budget stands; None: today's tree does not have it, or tree or capacity is unknown (unknown is never zero)."""
        self._advance(now_ms)
        account = self._accounts.get(budget)
        return None if account is None else self._read({budget: account}).get(budget)

    def standings(self, now_ms: Ms) -> dict[str, Standing]:
        """How every budget of today's tree stands, by name, in order; empty while tree or capacity is unknown."""
        self._advance(now_ms)
        return self._read(self._accounts)

    def _read(self, accounts: Mapping[str, _Account]) -> dict[str, Standing]:
        now_ms, bucket_ms, bucket_area = self._now_ms, self._bucket_ms, self._bucket_area
        available = self._available if now_ms > self._available_since_ms else self._available_before
        if available is None:
            return {}
        area = self._area(now_ms)
        cap = available * self._slice_cap_ms
        found: dict[str, Standing] = {}
        for name, account in accounts.items():
            if account.owed_at_ms != bucket_ms:
                account.owed = sum(term.owed(self._amounts, self._from_ms, bucket_ms) for term in account.terms)
                account.owed_at_ms = bucket_ms
            term, total = account.terms[-1], account.total
            part, whole, begun = term.part, term.whole, term.from_area
            owed = account.owed + (area - (begun if begun > bucket_area else bucket_area)) * part // whole
            floor = cap * part // whole
            found[name] = Standing(total.fixed + total.rate * now_ms, owed if owed > floor else floor)
        return found

    # ------------------------------------------------------------------------------------------------------------------- time

    def _advance(self, now_ms: Ms) -> None:
        if now_ms < self._now_ms:
            raise ValueError(f"the standings are at {self._now_ms} already, and cannot go back to {now_ms}")
        while self._slice_ends and self._slice_ends[0][0] <= now_ms:
            self._pass(*heappop(self._slice_ends))
        if now_ms >= self._edge_ms:
            if self._now_ms < 0:
                # Nothing has happened before the first fact.
                self._edge_ms = now_ms - now_ms % BUCKET_MS
                self._begin_bucket()
            while now_ms >= self._edge_ms:
                self._turn()
        self._now_ms = now_ms

    def _pass(self, end_ms: Ms, attempt: str) -> None:
        """A slice ends, unless the attempt has ended or was renewed: from here on every ms counts."""
        held = self._attempts.get(attempt)
        if held is None or held.past or held.leaf is None or held.started_ms is None or held.started_ms + held.slice_ms != end_ms:
            return
        held.past = True
        self._count(held.leaf, -held.gpus * end_ms, held.gpus)

    def _turn(self) -> None:
        """Complete the current bucket, and let the one that leaves the window go."""
        self._fix_usage()
        area = self._area(self._edge_ms)
        for term in self._young:
            if term.until_ms is None:
                term.cut(self._bucket_ms, area - term.from_area)
        self._young.clear()
        # One look-back more than the window: a budget that was last read when its window lay there still takes off what it added.
        self._amounts.append(self._bucket_ms, area - self._bucket_area, self._edge_ms - 2 * self._length_ms)
        self._bucket_area = area
        self._begin_bucket()
        while self._buckets and self._buckets[0][0] < self._from_ms:
            bucket_ms, charged = self._buckets.popleft()
            for name, amount in charged.items():
                _add(self._along(name, bucket_ms), -amount)
        while self._closed and self._closed[0][0] <= self._from_ms:
            self._forget(self._closed.popleft()[1])

    def _begin_bucket(self) -> None:
        self._bucket_ms = self._edge_ms
        self._edge_ms += BUCKET_MS
        self._from_ms = max(self._bucket_ms - self._length_ms, 0)

    def _fix_usage(self) -> None:
        """The usage of the current bucket leaves today's paths for those at its beginning."""
        charged: dict[str, GpuMs] = {}
        for leaf in list(self._busy.values()):
            used = leaf.running * self._edge_ms - leaf.origin
            leaf.origin += used
            leaf.live_fixed -= used
            totals = self._along(leaf.name, self._bucket_ms)
            if totals != leaf.totals:
                _add(leaf.totals, -used)
                _add(totals, used)
            if used + leaf.posted:
                charged[leaf.name] = used + leaf.posted
            leaf.posted = 0
            if not leaf.running:
                del self._busy[leaf.name]
        if charged:
            self._buckets.append((self._bucket_ms, charged))

    def _area(self, at_ms: Ms) -> GpuMs:
        """Available GPU-ms from the first report to an instant that is not before the last one."""
        return self._since_area + (self._available or 0) * (at_ms - self._available_since_ms)

    # ------------------------------------------------------------------------------------------------------------------ paths

    def _begin(self, share: Share) -> None:
        totals = tuple(self._totals.setdefault(name, _Total()) for name in share.path)
        term = _Term(share, totals, self._area(share.from_ms))
        self._terms.setdefault(share.budget, []).append(term)
        self._shares[share.budget] = share
        if share.from_ms > self._bucket_ms:
            self._young.append(term)

    def _close(self, name: str, at_ms: Ms) -> None:
        """A share ends. One that would have held for no time at all is not kept."""
        del self._shares[name]
        terms = self._terms[name]
        term = terms[-1]
        term.until_ms = at_ms
        if term.from_ms < at_ms:
            term.cut(self._bucket_ms, self._area(at_ms) - max(term.from_area, self._bucket_area))
            self._closed.append((at_ms, name))
            return
        terms.pop()
        if not terms:
            del self._terms[name]

    def _forget(self, name: str) -> None:
        """The oldest share of a budget has left the window: charges from after it, if any, go along the next one's path or none."""
        terms = self._terms[name]
        leaf = self._leaves.get(name)
        gap = leaf is not None and (len(terms) == 1 or terms[1].from_ms > self._from_ms)
        if leaf is not None and gap:
            self._spread(leaf, -1)
        terms.pop(0)
        if not terms:
            del self._terms[name]
        if leaf is not None and gap:
            self._spread(leaf, 1)

    def _spread(self, leaf: _Leaf, sign: int) -> None:
        """Add or take off what is posted for a leaf, bucket by bucket, each along its path. Only for rare changes of the tree."""
        for bucket_ms, charged in self._buckets:
            if leaf.name in charged:
                _add(self._along(leaf.name, bucket_ms), sign * charged[leaf.name])
        _add(self._along(leaf.name, self._bucket_ms), sign * leaf.posted)

    def _along(self, name: str, bucket_ms: Ms) -> tuple[_Total, ...]:
        """The path of a bucket's charges: that at its beginning; before the budget was known its first, once removed its last."""
        terms = self._terms.get(name)
        if terms is None:
            return ()
        for term in reversed(terms):
            if term.from_ms <= bucket_ms:
                return term.totals
        return terms[0].totals

    def _today(self, name: str) -> tuple[_Total, ...]:
        return self._terms[name][-1].totals if name in self._shares else ()

    def _leaf(self, name: str) -> _Leaf:
        leaf = self._leaves.get(name)
        if leaf is None:
            leaf = self._leaves[name] = _Leaf(name, self._today(name))
        return leaf

    def _count(self, leaf: _Leaf, fixed: GpuMs, rate: int) -> None:
        leaf.live_fixed += fixed
        leaf.live_rate += rate
        _add(leaf.totals, fixed, rate)


def _counts(held: _Held) -> tuple[GpuMs, int]:
    """What an attempt counts since its start, as in `_Total`: its slice, and once past it what it has used."""
    if held.past and held.started_ms is not None:
        return -held.gpus * held.started_ms, held.gpus
    return held.gpus * held.slice_ms, 0
