"""Rolling standings, held against `standings.take` fed with the postings, levels and live attempts of the same truth."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.ledger.model import BUCKET_MS, Live, NodeStep, Share
from allmende.ledger.rules.capacity import levels
from allmende.ledger.rules.rolling import Rolling
from allmende.ledger.rules.standings import Charges, Era, Tree, eras, take, window_at
from allmende.ledger.rules.tree import succeed
from allmende.proto.budget import Budget
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
        return {each.budget: Standing(each.charged_gpu_ms + each.held_gpu_ms, each.entitlement_gpu_ms) for each in taken.accounts}

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


@given(STEPS, st.booleans())
@settings(max_examples=500, deadline=None)
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


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_what_comes_before_tree_or_capacity_counts_once_they_are_known(steps: Sequence[tuple[int, int, int, int]]) -> None:
    play = Play()
    for step in steps:
        play.step(*step)
        play.check()
