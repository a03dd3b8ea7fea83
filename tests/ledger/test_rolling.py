"""Rolling standings, held against `standings.take` fed with the postings, levels and live attempts of the same truth."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.ledger.model import BUCKET_MS, Live, NodeStep, Share
from allmende.ledger.rules.capacity import levels
from allmende.ledger.rules.rolling import Rolling
from allmende.ledger.rules.standings import Charges, Era, Tree, eras, take, window_at
from allmende.ledger.rules.tree import succeed
from allmende.proto.budget import Budget, ClusterShare
from allmende.proto.standing import Standing
from tests.ledger.builders import START_MS, TREE

T = START_MS
LENGTH_MS = 4 * BUCKET_MS + 7_777
CAP_MS = BUCKET_MS + 1


class Known(NamedTuple):
    """An attempt as everybody knows it afterwards."""

    leaf: str | None
    gpus: int
    slice_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None


class Truth:
    """Keeps every fact for ever, and sums all of it for each reading."""

    def __init__(self) -> None:
        self.attempts: dict[str, Known] = {}
        self.steps: list[NodeStep] = []
        self.shares: list[Share] = []
        self.revision: int | None = None

    def tree(self, definitions: Mapping[str, Budget], revision: int, at_ms: int) -> None:
        """As the store does: a share that would have held for no time at all is not kept."""
        change = succeed({each.budget: each for each in self.shares if each.until_ms is None}, definitions, revision, at_ms)
        closed = [
            each._replace(until_ms=at_ms) if each.until_ms is None and each.budget in change.ended else each for each in self.shares
        ]
        self.shares = [each for each in closed if each.until_ms != each.from_ms] + list(change.begun)
        self.revision = revision

    def capacity(self, installed: int, available: int, at_ms: int) -> None:
        self.steps.append(NodeStep("c1", "all", at_ms, len(self.steps), installed, available))

    def began(self, attempt: str, leaf: str | None, gpus: int, slice_ms: int, granted_at_ms: int) -> None:
        self.attempts[attempt] = Known(leaf, gpus, slice_ms)

    def started(self, attempt: str, at_ms: int) -> None:
        self.attempts[attempt] = self.attempts[attempt]._replace(started_ms=at_ms)

    def renewed(self, attempt: str, slice_ms_more: int) -> None:
        known = self.attempts[attempt]
        self.attempts[attempt] = known._replace(slice_ms=known.slice_ms + slice_ms_more)

    def ended(self, attempt: str, at_ms: int) -> None:
        self.attempts[attempt] = self.attempts[attempt]._replace(ended_ms=at_ms)

    def standings(self, now_ms: int) -> dict[str, Standing]:
        window = window_at(now_ms, LENGTH_MS)
        tree = Tree(self.revision, [each for each in self.shares if each.until_ms is None or each.until_ms > window.from_ms])
        charges = [self._charges(era, now_ms) for era in eras(tree.shares, window)]
        live = [self._live(each, now_ms) for each in self.attempts.values() if each.ended_ms is None]
        taken = take(tree, charges, live, levels(self.steps, *window), window, CAP_MS)
        if taken is None:
            return {}
        # The rolling ones are of today's tree alone.
        today = {each.budget for each in self.shares if each.until_ms is None}
        return {
            each.budget: Standing(each.charged_gpu_ms + each.held_gpu_ms, each.entitlement_gpu_ms)
            for each in taken.accounts
            if each.budget in today
        }

    def _charges(self, era: Era, now_ms: int) -> Charges:
        """What is posted in an era: of ended attempts all, of live ones up to the last edge."""
        posted: dict[str, int] = {}
        for each in self.attempts.values():
            until_ms = now_ms - now_ms % BUCKET_MS if each.ended_ms is None else each.ended_ms
            if each.leaf is not None and each.started_ms is not None:
                held_ms = max(0, min(until_ms, era.to_ms) - max(each.started_ms, era.from_ms))
                posted[each.leaf] = posted.get(each.leaf, 0) + each.gpus * held_ms
        return Charges(era, posted)

    @staticmethod
    def _live(each: Known, now_ms: int) -> Live:
        if each.started_ms is None:
            return Live(each.leaf, each.gpus, 1, each.slice_ms, 0, 0)
        rest_ms = now_ms - max(each.started_ms, now_ms - now_ms % BUCKET_MS)
        return Live(each.leaf, each.gpus, 1, each.slice_ms, now_ms - each.started_ms, rest_ms)


def named(*budgets: Budget) -> dict[str, Budget]:
    return {each.budget: each for each in budgets}


PLAIN = named(*TREE)
TREES = (
    PLAIN,
    # One share moves, and with it those below it.
    PLAIN
    | named(Budget(budget="vision", parent="org", share_ppm=333_333), Budget(budget="research", parent="org", share_ppm=666_667)),
    # A leaf hangs elsewhere.
    PLAIN | named(Budget(budget="nlp", parent="vision", share_ppm=123_457)),
    # A leaf is gone, and one that nobody knew is there.
    {name: each for name, each in PLAIN.items() if name != "nlp"} | named(Budget(budget="ghost", parent="vision", share_ppm=7)),
    # An unset leaf covers nothing, an unset parent is transparent; a leaf has become a parent.
    PLAIN
    | named(
        Budget(budget="research", parent="org"),
        Budget(budget="rl", parent="research"),
        Budget(budget="ghost", parent="nlp", share_ppm=0),
    ),
    # Another root.
    named(Budget(budget="nlp"), Budget(budget="ghost", parent="nlp", share_ppm=999_999)),
)
LEAVES = ("nlp", "rl", "vision", "ghost", None)
NEAR = (-1, 0, 1)


class Play:
    """Both books, told the same. A step is (jump, offset, kind, number): integers that choose among what is possible then."""

    def __init__(self) -> None:
        self.rolling, self.truth = Rolling(length_ms=LENGTH_MS, slice_cap_ms=CAP_MS), Truth()
        self.now_ms = T
        self.revision = 0

    def step(self, jump: int, offset: int, kind: int, number: int) -> None:
        self.now_ms = self._instant(jump, NEAR[offset])
        self._fact(kind, number)

    def _instant(self, jump: int, offset: int) -> int:
        """The same instant, or one beside an edge: of a bucket, a slice, or the window's over something that happened."""
        bucket_ms = self.now_ms - self.now_ms % BUCKET_MS
        whole_ms = LENGTH_MS - LENGTH_MS % BUCKET_MS
        edges = [bucket_ms + count * BUCKET_MS for count in (1, 1, 2, 4, 5, 9, 14)]
        for each in list(self.truth.attempts.values())[-3:]:
            if each.started_ms is not None:
                edges += [each.started_ms + each.slice_ms, each.started_ms + whole_ms]
        if jump < 4:
            return self.now_ms + (0, 0, 1, 12_345)[jump]
        return max(self.now_ms, edges[jump % len(edges)] + offset)

    def _fact(self, kind: int, number: int) -> None:
        waiting = [name for name, each in self.truth.attempts.items() if each.started_ms is None and each.ended_ms is None]
        live = [name for name, each in self.truth.attempts.items() if each.ended_ms is None]
        if kind == 0:
            self.revision += 1
            self.tell(lambda book: book.tree(TREES[number % len(TREES)], self.revision, self.now_ms))
        elif kind == 1:
            self.tell(lambda book: book.capacity(88, (88, 0, 87, 41)[number % 4], self.now_ms))
        elif kind in (2, 3):
            slice_ms = (0, 1, BUCKET_MS, BUCKET_MS + 1, 3 * BUCKET_MS, 12 * BUCKET_MS)[number % 6]
            leaf, name = LEAVES[number % 5], f"a{len(self.truth.attempts)}"
            self.tell(lambda book: book.began(name, leaf, 1 + number % 9, slice_ms, self.now_ms))
        elif kind in (4, 5) and waiting:
            self.tell(lambda book: book.started(waiting[number % len(waiting)], self.now_ms))
        elif kind == 6 and live:
            # A renewal says no time, because it does not matter how long ago the last fact was.
            self.tell(lambda book: book.renewed(live[number % len(live)], (0, 1, BUCKET_MS, 8 * BUCKET_MS)[number % 4]))
        elif kind == 7 and live:
            self.tell(lambda book: book.ended(live[number % len(live)], self.now_ms))
        elif kind > 7:
            self.check()

    def tell(self, fact: Callable[[Rolling | Truth], None]) -> None:
        fact(self.rolling)
        fact(self.truth)

    def check(self) -> None:
        found = self.rolling.standings(self.now_ms)
        assert found == self.truth.standings(self.now_ms)
        assert {name: self.rolling.standing(name, self.now_ms) for name in found} == found


STEPS = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 2), st.integers(0, 9), st.integers(0, 59)), min_size=4, max_size=40)
# On edges of buckets alone, with little but trees: what is rare elsewhere (gone and back, twice in an instant) happens here.
TREE_STEPS = st.lists(
    st.tuples(st.sampled_from((0, 4, 5, 6, 7, 8)), st.integers(0, 2), st.sampled_from((0, 0, 0, 2, 4, 7)), st.integers(0, 59)),
    min_size=4,
    max_size=30,
)


@given(STEPS, st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_history_stands_as_if_all_of_it_were_summed(steps: Sequence[tuple[int, int, int, int]], every: bool) -> None:
    play = Play()
    play.step(0, 1, 1, 0)
    play.step(0, 1, 0, 0)
    for step in steps:
        play.step(*step)
        if every:
            play.check()
    play.check()
    for _ in range(12):  # what is left rolls off although nothing happens
        play.step(4, 1, 9, 0)


@given(STEPS | TREE_STEPS)
@settings(max_examples=300, deadline=None)
def test_what_comes_before_tree_or_capacity_counts_once_they_are_known(steps: Sequence[tuple[int, int, int, int]]) -> None:
    play = Play()
    for step in steps:
        play.step(*step)
        play.check()


Fact: TypeAlias = tuple[Any, ...]
"""A method and its arguments. Instants are ms after T, and come last."""


class Case(NamedTuple):
    """`facts` come after capacity of 8 GPUs and the plain tree. `used`, `owed`: of some budgets at `at_ms` after T."""

    sentence: str
    facts: Sequence[Fact]
    at_ms: int
    used: Mapping[str, int] = {}
    owed: Mapping[str, int] = {}


B = BUCKET_MS
# What the entitlement of the root never goes below.
FLOOR = 8 * CAP_MS
BEGINNING: tuple[Fact, ...] = (("capacity", 8, 8, 0), ("tree", PLAIN, 1, 0))
MOVED, GONE = TREES[2], TREES[3]


def held(slice_ms: int) -> tuple[Fact, ...]:
    """Two GPUs that nlp uses from T on."""
    return ("began", "a", "nlp", 2, slice_ms, 0), ("started", "a", 0)


CASES = (
    Case("a hold counts at once, on every level", [("began", "a", "nlp", 2, B, 5)], 5, {"nlp": 2 * B, "research": 2 * B, "rl": 0}),
    Case("unallocated counts for nobody", [("began", "a", None, 2, 0, 5), ("started", "a", 5)], B, {"org": 0}),
    Case("inside the slice use wears the hold down", held(B + 1), B, {"nlp": 2 * (B + 1)}),
    Case("at the slice's end nothing is held any more", held(B), B, {"nlp": 2 * B}),
    Case("past the slice every ms counts", held(B), B + 1, {"nlp": 2 * (B + 1)}),
    Case("slice 0 counts from its first ms", held(0), 1, {"org": 2}),
    Case("an end gives back the rest of the hold", [*held(B), ("ended", "a", 7)], 8, {"nlp": 14, "org": 14}),
    Case("what never started is never charged", [("began", "a", "nlp", 2, B, 1), ("ended", "a", 2)], 2, {"nlp": 0}),
    Case("a renewal adds to the hold", [*held(B), ("renewed", "a", 5)], 1, {"nlp": 2 * (B + 5)}),
    Case(
        "a renewal past the slice holds what lies ahead only",
        [*held(B), ("capacity", 8, 8, 2 * B), ("renewed", "a", 2 * B)],
        2 * B,
        {"nlp": 6 * B},
    ),
    Case("usage inside the window stays", [*held(0), ("ended", "a", 7)], 5 * B - 1, {"nlp": 14}),
    Case("usage rolls off with its whole bucket, though nothing happens", [*held(0), ("ended", "a", 7)], 5 * B, {"nlp": 0}),
    Case(
        "a moved leaf leaves its charges where they arose", [*held(0), ("tree", MOVED, 2, B)], B, {"research": 2 * B, "vision": 0}
    ),
    Case("a move on an edge takes the bucket after it along", [*held(0), ("tree", MOVED, 2, B)], 2 * B, {"vision": 2 * B}),
    Case("a bucket stays on the path at its beginning", [*held(0), ("tree", MOVED, 2, 1)], B, {"research": 2 * B, "vision": 0}),
    Case("a hold goes with its leaf", [*held(B), ("tree", MOVED, 2, 1)], 1, {"research": 0, "vision": 2 * B}),
    Case(
        "a leaf that is gone charges its last path",
        [*held(0), ("tree", GONE, 2, B), ("ended", "a", 2 * B)],
        2 * B,
        {"research": 4 * B, "org": 4 * B},
    ),
    Case(
        "a leaf that was there for no time was never there",
        [*held(0), ("tree", MOVED, 2, B), ("tree", GONE, 3, B), ("ended", "a", 2 * B)],
        2 * B,
        {"research": 4 * B, "vision": 0},
    ),
    Case(
        "once the share of a leaf that is gone has left the window, its charges go along its next path",
        [*held(0), ("tree", GONE, 2, B), ("ended", "a", 3 * B), ("tree", MOVED, 3, 3 * B)],
        5 * B,
        {"research": 0, "vision": 4 * B},
    ),
    Case(
        "and until then along its last one",
        [*held(0), ("tree", GONE, 2, B + 1), ("ended", "a", 3 * B), ("tree", MOVED, 3, 3 * B)],
        5 * B,
        {"research": 4 * B, "vision": 0},
    ),
    Case(
        "charges of a leaf that nobody knew go along its first path, even if that is replaced at once",
        [
            ("began", "a", "ghost", 1, 0, 0),
            ("started", "a", 0),
            ("ended", "a", B + 5),
            ("tree", GONE, 2, B + 9),
            ("tree", TREES[4], 3, B + 9),
        ],
        B + 9,
        {"ghost": B + 5, "nlp": B + 5, "vision": 0},
    ),
    Case("a sliver of time is judged by the floor", [], 1, owed={"org": FLOOR, "vision": FLOOR * 6 // 10}),
    Case("past the floor each ms is owed", [], 2 * B, owed={"org": 16 * B, "nlp": 2 * B * 8 // 5}),
    Case("the window owes its whole buckets and the current one", [], 9 * B + 3, owed={"org": 8 * (4 * B + 3)}),
    Case("capacity counts from when it changes", [("capacity", 8, 0, B)], 3 * B, owed={"org": 8 * B}),
    Case("capacity at an instant is that before it", [("capacity", 8, 0, B)], B, owed={"org": FLOOR}),
    Case(
        "a share that changes in mid-bucket is floored twice",
        [("tree", TREES[1], 2, B + 1)],
        3 * B,
        owed={"vision": 8 * B * 6 // 10 + 8 * 6 // 10 + 8 * (B - 1) * 333_333 // 10**6 + 8 * B * 333_333 // 10**6},
    ),
    Case("zero and unset are owed nothing", [("tree", TREES[4], 2, 0)], B, owed={"ghost": 0, "rl": 0}),
)


def check(case: Case) -> None:
    rolling, truth = Rolling(length_ms=LENGTH_MS, slice_cap_ms=CAP_MS), Truth()
    for book in (rolling, truth):
        for method, *arguments in (*BEGINNING, *case.facts):
            if method != "renewed":
                arguments[-1] += T
            getattr(book, method)(*arguments)
    found = rolling.standings(T + case.at_ms)
    assert found == truth.standings(T + case.at_ms)
    assert {name: found[name].used for name in case.used} == case.used
    assert {name: found[name].entitlement for name in case.owed} == case.owed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sentence)
def test_standings(case: Case) -> None:
    check(case)


def test_unknown_is_not_zero() -> None:
    rolling = Rolling(slice_cap_ms=CAP_MS)
    rolling.tree(PLAIN, 1, T)
    rolling.capacity(8, 8, T)
    assert rolling.standings(T) == {}, "no GPU was there before T"
    assert rolling.standing("nlp", T) is None
    assert rolling.standing("nlp", T + 1) is not None
    assert rolling.standing("nobody", T + 1) is None


def test_time_never_goes_back() -> None:
    rolling = Rolling(slice_cap_ms=CAP_MS)
    rolling.capacity(8, 8, T)
    rolling.standings(T + 5)
    with pytest.raises(ValueError, match="cannot go back"):
        rolling.began("a", "nlp", 1, 0, T + 4)


def test_a_look_back_without_a_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter than a bucket"):
        Rolling(length_ms=BUCKET_MS - 1, slice_cap_ms=CAP_MS)


def test_each_cluster_is_owed_by_its_own_shares() -> None:
    own = (ClusterShare(cluster="c2", share_ppm=100_000),)
    budgets = PLAIN | named(Budget(budget="research", parent="org", share_ppm=400_000, cluster_shares=own))
    owed = {}
    for cluster in ("c1", "c2"):
        rolling = Rolling(slice_cap_ms=0, cluster=cluster)
        rolling.tree(budgets, 1, T)
        rolling.capacity(8, 8, T)
        owed[cluster] = {name: each.entitlement for name, each in rolling.standings(T + BUCKET_MS).items() if name != "org"}
    tenth = 8 * BUCKET_MS // 10
    assert owed["c1"] == {"vision": 6 * tenth, "research": 4 * tenth, "nlp": 2 * tenth, "rl": 2 * tenth}
    assert owed["c2"] == {"vision": 6 * tenth, "research": tenth, "nlp": tenth // 2, "rl": tenth // 2}
