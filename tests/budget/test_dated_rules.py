"""Dated changes: what may be planned, what each instant does, and that no tree is ever invalid on a date. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from allmende.budget.model import Asking, Budgets, Commit, Intent, OpenChange, Rejection, Tree, Unchanged
from allmende.budget.rules import dated, trees
from allmende.proto.budget import Budget, ChildShare
from allmende.proto.dated import MAX_OPEN, PlanShares
from allmende.proto.ids import make_id
from allmende.proto.tree_rules import validate
from allmende.proto.units import HOUR_MS, PPM_WHOLE, Ms, parse_share
from tests.budget.builders import budget, own, valid_trees
from tests.budget.test_rights import whole_of

NOW_MS = 1_700_000_000_000
# mia manages the department d, eve its neighbour e; u has no share, so what is below it counts in the lab's sum.
ROWS = (
    budget("lab", managers=("olga",)),
    budget("d", "lab", "35%", managers=("mia",)),
    budget("e", "lab", "40%", managers=("eve",), cluster_shares=own(c1="10%")),
    budget("u", "lab", managers=("ute",)),
    budget("x", "d", "20%"),
    budget("y", "d", "70%"),
    budget("v", "u", "15%", managers=("vic",)),
)
BEFORE = Tree(3, {row.budget: row for row in ROWS})


def hours(number: float) -> Ms:
    """So many hours from now."""
    return NOW_MS + round(number * HOUR_MS)


def wish(
    parent: str = "lab",
    begin: float | None = 1,
    end: float | None = None,
    number: int = 1,
    cluster: str | None = None,
    **shares: str | None,
) -> PlanShares:
    """Shares below a parent, from and until so many hours from now."""
    children = tuple(
        ChildShare(budget=name, share_ppm=None if each is None else parse_share(each)) for name, each in shares.items()
    )
    return PlanShares(
        change=make_id(NOW_MS, bytes([number, *bytes(9)])),
        parent=parent,
        children=children,
        effective_from_ms=None if begin is None else hours(begin),
        effective_until_ms=None if end is None else hours(end),
        expected_revision=3,
        reason="agreed in May",
        cluster=cluster,
    )


LAB: Mapping[str, str | None] = {"d": "45%", "e": "30%", "u": None}


def lab(begin: float | None = 1, end: float | None = None, number: int = 1, **shares: str | None) -> PlanShares:
    """Shares of all below the lab, other ones than today's unless told."""
    return wish("lab", begin, end, number, **{**LAB, **shares})


class World(NamedTuple):
    """A tree and its dated changes, with the time."""

    tree: Tree = BEFORE
    opened: Sequence[OpenChange] = ()
    now_ms: Ms = NOW_MS

    def plan(self, asked: PlanShares, who: str = "olga", operator: bool = False) -> "World | Rejection":
        """The world with a plan; the expected revision is the one in force."""
        asked = replace(asked, expected_revision=self.tree.revision)
        done = dated.plan(self.tree, self.opened, asked, self.now_ms, Asking(who, operator=operator))
        if isinstance(done, Rejection):
            return done
        number = 1 + max((each.number for each in self.opened), default=0)
        new = OpenChange(number, done.planned, done.planned.until_ms, None, None)
        return self._replace(opened=[*self.opened, new])._done(
            done.written._replace(steps=[step._replace(change=new) for step in done.written.steps])
        )

    def write(self, **shares: str | None) -> "World | Rejection":
        """The world after the shares below the lab were set, without dates."""
        children = [(name, None if each is None else parse_share(each)) for name, each in {**LAB, **shares}.items()]
        verdict = trees.set_shares(self.tree, Intent("olga", "now", self.tree.revision), "lab", children, self.now_ms, OLGA)
        return self._judged(verdict)

    def put(self, *rows: Budget) -> "World | Rejection":
        """The world after budgets were created or moved."""
        intent = Intent("olga", "now", self.tree.revision)
        return self._judged(trees.put_budgets(self.tree, intent, rows, self.tree.budgets, self.now_ms, OLGA))

    def load(self, *rows: Budget) -> "World | Rejection":
        """The world after a whole tree was loaded."""
        return self._judged(trees.load_tree(self.tree, Intent("olga", "now", self.tree.revision), rows, self.now_ms))

    def withdraw(self, number: int = 1, who: str = "olga", why: str = "no more") -> "World | Rejection":
        """The world without one of its changes."""
        change = make_id(NOW_MS, bytes([number, *bytes(9)]))
        done = dated.withdraw(self.tree, self.opened, change, why, self.now_ms, Asking(who, operator=False))
        return done if isinstance(done, Rejection) else self._done(done)

    def renewal(self, number: int = 1) -> "World":
        """The world in which somebody asks for a renewal."""
        change = make_id(NOW_MS, bytes([number, *bytes(9)]))
        return self._replace(opened=[each._replace(renewal="p") if each.planned.change == change else each for each in self.opened])

    def at(self, hour: float) -> "World":
        """The world at an instant: all that is due is done, one after another."""
        world = self._replace(now_ms=hours(hour))
        while (done := dated.due(world.tree, world.opened, world.now_ms)) is not None:
            world = world._done(done)
        return world

    def shares(self, *names: str, cluster: str | None = None) -> list[int | None]:
        """Of each budget its share, or its own share of a cluster, in percent."""
        found = [trees.own_share(self.tree.budgets[name], cluster) for name in names]
        return [None if each is None else each // 10_000 for each in found]

    def _judged(self, verdict: object) -> "World | Rejection":
        verdict = dated.judged(self.tree, verdict, self.opened)  # type: ignore[arg-type]
        return verdict if isinstance(verdict, Rejection) else self._done(dated.Written(verdict))

    def _done(self, written: dated.Written) -> "World":
        opened = {each.number: each for each in self.opened}
        for step in written.steps:
            change = opened.pop(step.change.number)
            if step.step == "begun" and change.until_ms is not None:
                opened[change.number] = change._replace(base=step.base)
            if step.step == "extended":
                opened[change.number] = change._replace(until_ms=step.until_ms, renewal=None)
        tree = self.tree
        if isinstance(written.verdict, Commit):
            merged = {**tree.budgets, **written.verdict.changed}
            after = {name: row for name, row in merged.items() if row is not None}
            tree = Tree(written.verdict.revision.number, after)
        return World(tree, [opened[number] for number in sorted(opened)], self.now_ms)


OLGA = Asking("olga", operator=False)
WORLD = World()


def codes(found: object) -> list[str]:
    """The codes of a refusal; none: it is done."""
    return [fault.code for fault in found.faults] if isinstance(found, Rejection) else []


def world(found: World | Rejection) -> World:
    """What was not refused."""
    assert isinstance(found, World), codes(found)
    return found


def sentence(found: object) -> str:
    """The sentence of the only fault."""
    assert isinstance(found, Rejection), found
    (fault,) = found.faults
    return fault.sentence


PLANNED = world(WORLD.plan(lab(2, 5)))
RUNS = PLANNED.at(2)
FULL = world(WORLD.plan(lab(2, 5, e="40%")))

REFUSED: dict[str, tuple[object, list[str]]] = {
    "for good from an instant": (WORLD.plan(lab(1)), []),
    "between two": (WORLD.plan(lab(1, 2)), []),
    "at once until an instant": (WORLD.plan(lab(None, 2)), []),
    "neither: that is no dated change": (WORLD.plan(lab(None)), ["no_dates"]),
    "a beginning that has passed": (WORLD.plan(lab(-1, 2)), ["from_in_past"]),
    "this very instant has passed too": (WORLD.plan(lab(0)), ["from_in_past"]),
    "an end before the beginning": (WORLD.plan(lab(2, 1)), ["until_before_from"]),
    "an end at the beginning: half-open, it would be never": (WORLD.plan(lab(2, 2)), ["until_before_from"]),
    "an end that has passed": (WORLD.plan(lab(None, 0)), ["until_before_from"]),
    "both": (WORLD.plan(lab(-1, -2)), ["from_in_past", "until_before_from"]),
    "without a reason": (WORLD.plan(replace(lab(1), reason=" ")), ["reason_missing"]),
    "all children, as without dates": (WORLD.plan(wish("lab", 1, d="1%")), ["missing_child", "missing_child"]),
    "below nobody": (WORLD.plan(wish("z", 1, d="1%")), ["unknown_budget"]),
    "more than the whole": (WORLD.plan(lab(1, d="56%", u=None)), ["shares_exceed_parent"]),
    "more than the whole on a cluster": (
        WORLD.plan(wish("lab", 1, cluster="c1", d="51%", e="50%", u=None)),
        ["shares_exceed_parent"],
    ),
    "his own children are his to plan": (WORLD.plan(wish("d", 1, x="1%", y="1%"), "mia"), []),
    "himself is not": (WORLD.plan(lab(1), "mia"), ["not_a_manager", "not_a_manager"]),
    "an operator may": (WORLD.plan(lab(1), "root", operator=True), []),
    "through an unset budget no more than is drawn then": (
        WORLD.plan(wish("u", 1, v="16%"), "ute"),
        ["more_than_held", "more_than_held"],
    ),
    "two overlays that meet": (PLANNED.plan(lab(4, 6, 2)), ["dated_overlap"]),
    "one inside the other": (PLANNED.plan(lab(3, 4, 2)), ["dated_overlap"]),
    "around it": (PLANNED.plan(lab(1, 6, 2)), ["dated_overlap"]),
    "at once into it": (PLANNED.plan(lab(None, 3, 2)), ["dated_overlap"]),
    "right before": (PLANNED.plan(lab(1, 2, 2)), []),
    "right after": (PLANNED.plan(lab(5, 6, 2)), []),
    "another parent's": (PLANNED.plan(wish("d", 3, 4, 2, x="1%", y="1%")), []),
    "for good inside an overlay, where nobody would see it": (PLANNED.plan(lab(3, None, 2)), ["dated_overlap"]),
    "for good at its beginning": (PLANNED.plan(lab(2, None, 2)), ["dated_overlap"]),
    "for good at its end": (PLANNED.plan(lab(5, None, 2)), []),
    "for good before it": (PLANNED.plan(lab(1, None, 2)), []),
    "an overlay around a change for good": (world(WORLD.plan(lab(3))).plan(lab(2, 4, 2)), ["dated_overlap"]),
    "an overlay that begins with one": (world(WORLD.plan(lab(3))).plan(lab(3, 4, 2)), ["dated_overlap"]),
    "two for good at one instant": (world(WORLD.plan(lab(3))).plan(lab(3, None, 2)), ["dated_overlap"]),
    "two for good, one after another": (world(WORLD.plan(lab(3))).plan(lab(4, None, 2)), []),
    "on a cluster beside general ones": (PLANNED.plan(wish("lab", 3, 4, 2, "c1", d="1%", e="1%", u=None)), ["dated_overlap"]),
    "into one that runs": (RUNS.plan(lab(4, 6, 2)), ["dated_overlap"]),
    "beyond the end of one whose renewal is asked": (PLANNED.renewal().plan(lab(9, 10, 2)), ["dated_overlap"]),
    "an overlay that only fits after another": (FULL.plan(wish("u", 1, 3, 2, v="17%")), ["shares_exceed_parent"]),
    "plain shares before it begins": (PLANNED.write(d="1%"), []),
    "plain shares that leave it no room, through an unset budget": (
        WORLD.plan(lab(1, d="46%", e="40%", u=None)),
        ["shares_exceed_parent"],
    ),
    "plain shares while it runs": (RUNS.write(d="1%"), ["dated_running"]),
    "what runs may be said again": (RUNS.write(), []),
    "other children's while it runs": (RUNS.put(replace(ROWS[3], title="new")), []),
    "a new child that fits now and then": (RUNS.put(budget("n", "lab", "5%")), []),
    "a new child that fits now, and not at the end": (RUNS.put(budget("n", "lab", "10%")), []),
    "a new child that does not fit at the end": (
        world(WORLD.plan(lab(2, 5, d="1%"))).at(2).put(budget("n", "lab", "11%")),
        ["shares_exceed_parent"],
    ),
    "a new child that does not fit at the beginning": (FULL.put(budget("n", "lab", "2%")), ["shares_exceed_parent"]),
    "a file with the shares that run": (RUNS.load(*RUNS.tree.budgets.values()), []),
    "a file with the shares of before": (RUNS.load(*ROWS), ["dated_running"]),
    "a file without a child that it names": (RUNS.load(*(row for row in RUNS.tree.budgets.values() if row.budget != "e")), []),
    "taken back by its author": (PLANNED.withdraw(), []),
    "by the neighbour": (PLANNED.withdraw(who="eve"), ["not_a_manager"]),
    "ended early": (RUNS.withdraw(), []),
    "without saying why": (RUNS.withdraw(why=" "), ["reason_missing"]),
    "with a reason that the history cannot hold": (RUNS.withdraw(why="no\0more"), ["reason_unreadable"]),
    "planned with such a reason": (WORLD.plan(replace(lab(1), reason="no\0more")), ["reason_unreadable"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_dated_changes_are_judged(case: str) -> None:
    found, expected = REFUSED[case]
    assert codes(found) == expected


def test_a_change_that_others_need_cannot_be_taken_back() -> None:
    shrunk = world(WORLD.plan(lab(1, d="10%", e="30%")))
    grown = world(shrunk.plan(wish("u", 2, None, 2, v="60%")))
    # In general, and on the cluster that has shares of its own.
    assert codes(grown.withdraw()) == ["shares_exceed_parent", "shares_exceed_parent"]
    assert codes(world(grown.withdraw(2)).withdraw()) == []


def test_both_of_an_overlap_are_named_with_their_dates() -> None:
    words = sentence(PLANNED.plan(lab(4, 6, 2)))
    assert PLANNED.opened[0].planned.change in words
    assert lab(4, 6, 2).change in words
    assert words.count("2023-11-1") == 4
    assert "renewal is asked" in sentence(PLANNED.renewal().plan(lab(9, 10, 2)))


def test_a_fault_of_a_later_instant_names_the_instant_and_the_change() -> None:
    words = sentence(world(WORLD.plan(lab(2, 5, d="1%"))).at(2).put(budget("n", "lab", "11%")))
    assert words.startswith(
        f"from 2023-11-15T03:13:20Z on, when change {lab().change} of olga ends: the shares below 'lab' sum to 101%"
    )


def test_whoever_changes_what_runs_is_told_until_when_and_what_to_do() -> None:
    words = sentence(RUNS.write(d="1%"))
    assert words.startswith("until 2023-11-15T03:13:20Z the shares below 'lab' are those of change")
    assert f"allmende budgets call-off {lab().change}" in words


def test_there_are_not_too_many() -> None:
    many = [PLANNED.opened[0]._replace(number=number) for number in range(MAX_OPEN)]
    assert "too_many_dated" in codes(PLANNED._replace(opened=many).plan(wish("d", 1, x="1%", y="1%")))


def test_what_a_reply_cannot_hold_is_refused() -> None:
    rows = {"r": budget("r"), **{f"{number:063}": budget(f"{number:063}", "r", "0%") for number in range(1_000)}}
    children = tuple(ChildShare(budget=name, share_ppm=0) for name in rows if name != "r")
    asked = replace(wish("r", 1), children=children)
    assert codes(World(Tree(3, rows)).plan(asked, "root", operator=True)) == ["change_too_large"]


# --------------------------------------------------------------------------------------------------------- what an instant does


def test_an_overlay_begins_and_ends_and_the_shares_of_before_come_back() -> None:
    assert PLANNED.tree == BEFORE
    assert PLANNED.at(1.999).tree == BEFORE
    assert RUNS.shares("d", "e", "u") == [45, 30, None]
    assert RUNS.tree.revision == 4
    assert RUNS.at(4.999).tree == RUNS.tree
    after = RUNS.at(5)
    assert (after.tree.budgets, after.tree.revision, after.opened) == (BEFORE.budgets, 5, [])


def test_a_change_for_good_stays() -> None:
    after = world(WORLD.plan(lab(2))).at(9)
    assert (after.shares("d", "e"), after.tree.revision, after.opened) == ([45, 30], 4, [])


def test_at_once_is_a_revision_and_it_ends_by_itself() -> None:
    now = world(WORLD.plan(lab(None, 2)))
    assert (now.shares("d", "e"), now.tree.revision) == ([45, 30], 4)
    assert now.at(2).tree.budgets == BEFORE.budgets


def test_instants_that_passed_meanwhile_come_one_after_another() -> None:
    later = world(PLANNED.plan(lab(5, None, 2, d="50%")))
    done = later.at(100)
    # Begun, and at the fifth hour one revision in which one ends and the other begins.
    assert (done.shares("d", "e"), done.tree.revision) == ([50, 30], 5)


def test_an_end_and_a_beginning_at_one_instant_are_one_revision() -> None:
    first = world(WORLD.plan(lab(None, 5, d="60%", e="10%")))
    both = world(first.plan(lab(5, 7, 2, d="10%", e="70%")))
    assert both.at(5).tree.revision == 5
    assert both.at(5).shares("d", "e") == [10, 70]
    assert both.at(7).tree.budgets == BEFORE.budgets


def test_shares_of_one_cluster_come_back_too_also_where_there_were_none() -> None:
    runs = world(WORLD.plan(wish("lab", None, 2, cluster="c1", d="60%", e="25%", u=None)))
    assert runs.shares("d", "e", "u", cluster="c1") == [60, 25, None]
    assert runs.shares("d", "e") == [35, 40]
    assert codes(runs.write(d="36%", e="39%")) == []
    after = runs.at(2)
    assert after.shares("d", "e", cluster="c1") == [None, 10]
    assert after.tree.budgets == BEFORE.budgets


def test_children_that_moved_or_went_are_passed_over_and_new_ones_stay_as_they_are() -> None:
    moved = world(
        RUNS.put(
            replace(RUNS.tree.budgets["e"], parent="d", share_ppm=parse_share("1%"), cluster_shares=UNSET), budget("n", "lab", "2%")
        )
    )
    after = moved.at(5)
    assert after.shares("d", "e", "n") == [35, 1, 2]
    gone = world(RUNS.load(*(row for row in RUNS.tree.budgets.values() if row.budget != "e"))).at(5)
    assert gone.shares("d") == [35]
    assert "e" not in gone.tree.budgets


def test_an_overlay_without_any_difference_makes_no_revision() -> None:
    same = world(WORLD.plan(lab(1, 2, d="35%", e="40%"))).at(3)
    assert (same.tree, same.opened) == (BEFORE, [])


def test_the_history_says_whose_plan_it_was_and_why() -> None:
    done = dated.due(BEFORE, PLANNED.opened, hours(2))
    assert done is not None
    assert isinstance(done.verdict, Commit)
    assert done.verdict.revision.author == "olga"
    assert done.verdict.revision.reason == f"agreed in May (dated change {lab().change} begins)"
    assert done.verdict.revision.effective_from_ms == hours(2)


@pytest.mark.parametrize("why", ["x" * 1_000, "short"])
def test_however_long_a_reason_is_the_history_names_the_change(why: str) -> None:
    planned = world(WORLD.plan(replace(lab(2, 5), reason=why)))
    begun = dated.due(BEFORE, planned.opened, hours(2))
    off = dated.withdraw(planned.at(2).tree, planned.at(2).opened, lab().change, why, hours(3), OLGA)
    for done, note in ((begun, "begins"), (off, "called off")):
        assert isinstance(done, dated.Written)
        assert isinstance(done.verdict, Commit)
        assert done.verdict.revision.reason.endswith(f"(dated change {lab().change} {note})")
        assert len(done.verdict.revision.reason) <= 1_000


def test_ending_early_brings_the_shares_of_before_back() -> None:
    early = world(RUNS.withdraw())
    assert (early.tree.budgets, early.opened) == (BEFORE.budgets, [])
    assert world(PLANNED.withdraw()) == WORLD._replace(opened=[])


# ---------------------------------------------------------------------------------------------------------------------- renewals


def test_while_a_renewal_waits_for_an_answer_the_overlay_stays() -> None:
    held = RUNS.renewal().at(9)
    assert held.shares("d", "e") == [45, 30]
    answered = held._replace(opened=[each._replace(renewal=None) for each in held.opened])
    assert answered.at(9).tree.budgets == BEFORE.budgets


def test_what_nobody_answers_makes_room_for_what_was_promised() -> None:
    # Through u, whose share is unset: with 45 + 30 nothing above 25 fits, with today's 35 + 30 there is room for 35.
    base = world(WORLD.write(d="35%", e="30%"))
    overlay = world(base.plan(lab(None, 5)))
    both = world(overlay.plan(wish("u", 6, None, 2, v="35%"))).renewal()
    assert both.at(5.5).shares("d", "v") == [45, 15]
    assert both.at(6).shares("d", "v") == [35, 35]
    assert both.at(6).opened == []


def test_a_plan_of_the_same_parent_ends_what_nobody_answers() -> None:
    held = world(RUNS.plan(lab(7, 8, 2, d="50%"))).renewal()
    assert held.at(6).shares("d") == [45]
    assert held.at(7).shares("d") == [50]
    assert held.at(8).tree.budgets == BEFORE.budgets


# ---------------------------------------------------------------------------------------------------------------------- anything

ppms = st.sampled_from([None, 0, 1, 300_000, 500_000, PPM_WHOLE])


@given(valid_trees(), st.data())
@settings(deadline=None)
def test_whatever_is_planned_and_written_the_tree_is_valid_at_every_instant(rows: Sequence[Budget], data: st.DataObject) -> None:
    now = World(Tree(3, {row.budget: row for row in rows}))
    for number in range(1, data.draw(st.integers(2, 7))):
        parents = sorted({row.parent for row in now.tree.budgets.values() if row.parent is not None})
        do = data.draw(st.sampled_from(["plan", "plan", "put", "withdraw", "renewal", "answer", "time"]))
        found: World | Rejection = now
        if do == "plan" and parents:
            parent = data.draw(st.sampled_from(parents))
            shares = {row.budget: data.draw(ppms) for row in now.tree.budgets.values() if row.parent == parent}
            begin = data.draw(st.sampled_from([None, 1, 2, 3, 4]))
            end = data.draw(st.sampled_from([None, 1, 2, 3, 4, 5]))
            at = (now.now_ms - NOW_MS) / HOUR_MS
            asked = wish(parent, None if begin is None else begin + at, None if end is None else end + at, number)
            children = tuple(ChildShare(budget=name, share_ppm=share) for name, share in shares.items())
            found = now.plan(replace(asked, children=children), "root", operator=True)
        elif do == "put":
            name = data.draw(st.sampled_from([*sorted(now.tree.budgets), "new"]))
            parent = data.draw(st.sampled_from(sorted(now.tree.budgets)))
            row = now.tree.budgets.get(name, budget(name))
            verdict = trees.put_budgets(
                now.tree,
                Intent("root", "now", now.tree.revision),
                [replace(row, parent=parent, share_ppm=data.draw(ppms))],
                now.tree.budgets,
                now.now_ms,
                Asking("root", operator=True),
            )
            found = now._judged(verdict)
        elif do in ("withdraw", "renewal", "answer") and now.opened:
            one = data.draw(st.sampled_from(list(now.opened)))
            if do == "withdraw":
                root = Asking("root", operator=True)
                done = dated.withdraw(now.tree, now.opened, one.planned.change, "no", now.now_ms, root)
                found = done if isinstance(done, Rejection) else now._done(done)
            else:
                renewal = "p" if do == "renewal" and one.until_ms is not None else None
                found = now._replace(opened=[each._replace(renewal=renewal) if each is one else each for each in now.opened])
        else:
            found = now.at((now.now_ms - NOW_MS) / HOUR_MS + data.draw(st.sampled_from([0.5, 1, 2])))
        now = found if isinstance(found, World) else now
        assert validate(now.tree.budgets.values()) == ()
        assert whole_of(now.tree.budgets) == 1
        assert _one_at_a_time(now.opened)
    idle = now._replace(opened=[each._replace(renewal=None) for each in now.opened])
    last = idle.at(1_000)
    assert validate(last.tree.budgets.values()) == ()
    assert last.opened == []


@given(valid_trees(), st.data())
def test_when_every_overlay_is_over_the_tree_is_the_one_of_before(rows: Sequence[Budget], data: st.DataObject) -> None:
    now = World(Tree(3, {row.budget: row for row in rows}))
    before: Budgets = now.tree.budgets
    parents = sorted({row.parent for row in rows if row.parent is not None})
    for number, parent in enumerate(parents, start=1):
        children = tuple(ChildShare(budget=row.budget, share_ppm=data.draw(ppms)) for row in rows if row.parent == parent)
        begin = data.draw(st.sampled_from([None, 1, 2]))
        asked = replace(wish(parent, begin, data.draw(st.sampled_from([3, 4])), number), children=children)
        found = now.plan(asked, "root", operator=True)
        now = found if isinstance(found, World) else now
    last = now.at(data.draw(st.sampled_from([4, 5])))
    assert last.tree.budgets == before
    assert list(last.opened) == []


def _one_at_a_time(opened: Sequence[OpenChange]) -> bool:
    running = [each.planned.parent for each in opened if each.runs]
    return len(running) == len(set(running))


def test_nothing_is_due_before_its_time() -> None:
    assert dated.due(BEFORE, (), NOW_MS) is None
    assert dated.due(BEFORE, PLANNED.opened, hours(2) - 1) is None
    assert dated.next_look(PLANNED.opened) == hours(2)
    assert dated.next_look(RUNS.opened) == hours(5)
    assert dated.next_look(RUNS.renewal().opened) is None
    assert dated.judged(BEFORE, Unchanged(3), PLANNED.opened) == Unchanged(3)
