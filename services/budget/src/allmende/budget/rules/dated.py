"""Dated changes of shares: what may be planned, and what each instant does to the tree (contract §2, decision 0027).

Pure. An overlay that runs is part of the tree in force; what comes back at its end is kept with it. Never plans by itself.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from msgspec import json

from allmende.budget.model import Asking, Budgets, Commit, Intent, OpenChange, Rejection, Shares, Tree, Unchanged, Verdict
from allmende.budget.rules import trees
from allmende.budget.rules.rights import may_divide, nearest_managers, overreach, those
from allmende.proto.dated import MAX_OPEN, DatedShares, PlannedShares, PlanShares
from allmende.proto.message import Problem
from allmende.proto.tree_rules import quote, validate_change
from allmende.proto.units import Ms, format_instant

# A reply holds one change with its steps, and 64 KiB.
MAX_CHANGE_BYTES = 48 * 1024


class Step(NamedTuple):
    """What becomes of one change. `base`: of a beginning, the shares that come back at the end; `until_ms`: a new end."""

    change: OpenChange
    step: Literal["begun", "extended", "ended", "withdrawn"]
    base: Shares
    until_ms: Ms | None = None


class Moment(NamedTuple):
    """An instant and what it does to the tree: what ends there, then what begins."""

    at_ms: Ms
    steps: Sequence[Step]
    before: Budgets
    after: Budgets


class Written(NamedTuple):
    """What a dated write does to the tree, and what it does to dated changes, in order."""

    verdict: Commit | Unchanged
    steps: Sequence[Step] = ()


class Plan(NamedTuple):
    """A change as it is to be kept; one that begins at once also is a write."""

    planned: PlannedShares
    written: Written


def ahead(budgets: Budgets, opened: Sequence[OpenChange]) -> Iterator[Moment]:
    """The tree at each instant that is planned, in order; each instant once, with all that ends and begins there."""
    left = {each.number: each for each in opened}
    while left:
        at_ms = min(each.next_ms for each in left.values())
        after, steps = _taken_together(budgets, [each for each in left.values() if each.next_ms == at_ms])
        for change, step, base, _until_ms in steps:
            del left[change.number]
            if step == "begun" and change.until_ms is not None:
                left[change.number] = change._replace(base=base)
        yield Moment(at_ms, steps, budgets, after)
        budgets = after


def as_of(budgets: Budgets, opened: Sequence[OpenChange], at_ms: Ms) -> Budgets:
    """The tree as it is planned for just before an instant."""
    for moment in ahead(budgets, opened):
        if moment.at_ms >= at_ms:
            break
        budgets = moment.after
    return budgets


def judged(tree: Tree, verdict: Verdict, opened: Sequence[OpenChange]) -> Verdict:
    """The verdict on an ordinary write, also judged by what is planned and by what runs.

    Faults: `dated_running` (it would change a share that an overlay has set), and those of `tree_rules.validate` of the first
    instant at which the tree would not be valid.
    """
    if not isinstance(verdict, Commit) or not opened:
        return verdict
    merged = {**tree.budgets, **verdict.changed}
    after = {name: row for name, row in merged.items() if row is not None}
    faults = [*_covered(tree.budgets, after, opened), *faults_ahead(after, opened)]
    return Rejection(tree.revision, faults) if faults else verdict


def plan(tree: Tree, opened: Sequence[OpenChange], asked: PlanShares, now_ms: Ms, asking: Asking) -> Plan | Rejection:
    """Plan shares of all children of one parent; without a beginning they hold at once.

    Faults: `stale_revision` (alone), `reason_missing`, those of `trees.children_faults`, `no_dates`, `from_in_past`,
    `until_before_from`, `dated_overlap` (both named), `too_many_dated`, `change_too_large`, and at its beginning those of
    `rights.overreach` and, at that instant and each later one, those of `tree_rules.validate`.
    """
    intent = Intent(asking.name, asked.reason, asked.expected_revision)
    if stale := trees.stale_faults(tree, intent):
        return Rejection(tree.revision, stale)
    children = [(child.budget, child.share_ppm) for child in asked.children]
    planned = PlannedShares(
        change=asked.change,
        parent=asked.parent,
        children=asked.children,
        cluster=asked.cluster,
        from_ms=now_ms if asked.effective_from_ms is None else asked.effective_from_ms,
        until_ms=asked.effective_until_ms,
        author=asking.name,
        reason=asked.reason,
        planned_at_ms=now_ms,
        tree_revision=tree.revision,
    )
    faults = [
        *trees.reason_faults(intent),
        *trees.children_faults(tree, asked.parent, children),
        *_no_dates(asked),
        *date_faults(asked.effective_from_ms, asked.effective_until_ms, now_ms),
        *_room_faults(planned, opened),
    ]
    if faults:
        return Rejection(tree.revision, faults)
    new = OpenChange(1 + max((each.number for each in opened), default=0), planned, planned.until_ms, None, None)
    faults = [*overlap_faults(new, opened, now_ms)]
    if faults:
        return Rejection(tree.revision, faults)
    if asked.effective_from_ms is None:
        return _begun_now(tree, opened, new, intent, now_ms, asking)
    for moment in ahead(tree.budgets, [*opened, new]):
        if any(step.change is new and step.step == "begun" for step in moment.steps):
            faults += overreach(moment.before, _taken(moment.before, new)[0], asking)
    faults += faults_ahead(tree.budgets, [*opened, new])
    return Rejection(tree.revision, faults) if faults else Plan(planned, Written(Unchanged(tree.revision)))


def withdraw(tree: Tree, opened: Sequence[OpenChange], change: str, reason: str, now_ms: Ms, asking: Asking) -> Written | Rejection:
    """Take back what is planned, or end what runs now. `change` is one of `opened`.

    Faults: `not_a_manager`, those of `trees.reason_faults`, and those of `tree_rules.validate` now and at each later instant:
    another change may need the room that this one makes.
    """
    one = next(each for each in opened if each.planned.change == change)
    others = [each for each in opened if each is not one]
    intent = Intent(asking.name, _noted(one, reason, "called off"), tree.revision)
    faults: list[Problem] = []
    if not may_divide(tree.budgets, one.planned.parent, asking):
        faults.append(_not_a_manager(tree, one.planned.parent, asking.name))
    faults += trees.reason_faults(Intent(asking.name, reason, tree.revision))
    after, step = _taken(tree.budgets, one) if one.runs else (tree.budgets, Step(one, "withdrawn", {}))
    faults += validate_change(tree.budgets, after) or faults_ahead(after, others)
    if faults:
        return Rejection(tree.revision, faults)
    return Written(trees.commit(tree, intent, after, now_ms), [step])


def due(tree: Tree, opened: Sequence[OpenChange], now_ms: Ms) -> Written | None:
    """What the first instant that has passed does; None: none has. An overlay whose renewal is asked stays beyond its end.

    Raises:
        AssertionError: the tree would not be valid, though every write was judged by this instant.
    """
    held = [each for each in opened if each.runs and each.renewal is not None]
    moment = next(ahead(tree.budgets, [each for each in opened if each not in held]), None)
    if moment is None or moment.at_ms > now_ms:
        return None
    after, steps = moment.after, moment.steps
    over = [each for each in held if each.next_ms <= moment.at_ms]
    begun = {step.change.planned.parent for step in steps if step.step == "begun"}
    if over and (validate_change(tree.budgets, after) or any(each.planned.parent in begun for each in over)):
        # What stays only because nobody has answered makes room for what was promised.
        after, steps = _taken_together(tree.budgets, [*over, *(step.change for step in steps)])
    assert not validate_change(tree.budgets, after), f"the tree of {moment.at_ms} is not valid"
    author = steps[0].change.planned.author
    return Written(trees.commit(tree, Intent(author, _story(steps), tree.revision), after, now_ms), steps)


def revision_of(verdict: Commit | Unchanged) -> int:
    """The revision in force after it."""
    return verdict.revision.number if isinstance(verdict, Commit) else verdict.revision


def next_look(opened: Sequence[OpenChange]) -> Ms | None:
    """When the first instant comes that does something; None: none is planned."""
    return min((each.next_ms for each in opened if not each.runs or each.renewal is None), default=None)


def repeated(revision: int, known: DatedShares, asked: PlanShares, person: str) -> DatedShares | Rejection:
    """What to answer where there is a change of this id: itself to whoever planned it and asks again. Faults: `id_taken`."""
    was = known.planned
    from_ms = None if was.from_ms == was.planned_at_ms else was.from_ms
    before = (was.author, was.parent, was.cluster, was.children, was.reason, from_ms, was.until_ms)
    now = (asked.parent, asked.cluster, asked.children, asked.reason, asked.effective_from_ms, asked.effective_until_ms)
    if before == (person, *now):
        return known
    sentence = f"{asked.change} is the id of another change, below {quote(was.parent)} by {quote(was.author)}: make a new id"
    return Rejection(revision, [Problem(code="id_taken", sentence=sentence)])


def over(revision: int, known: DatedShares, by: str) -> DatedShares | Rejection | None:
    """What to answer about a change that is over: itself to whoever ended it and asks again; None while it is not.

    Faults: `already_over`.
    """
    if known.state in ("planned", "running"):
        return None
    last = known.steps[-1]
    if last.step in ("withdrawn", "ended") and last.by == by:
        return known
    how = "has begun for good: set the shares anew" if last.step == "begun" else f"was {last.step} by {quote(last.by)}"
    sentence = f"change {known.planned.change} {how}; it was over at {format_instant(last.at_ms)}"
    return Rejection(revision, [Problem(code="already_over", sentence=sentence)])


# -------------------------------------------------------------------------------------------------------------- what a step does


def _taken(budgets: Budgets, change: OpenChange) -> tuple[Budgets, Step]:
    """The tree after the change has begun, or ended. Children that hang elsewhere by then, or are gone, are passed over."""
    planned = change.planned
    shares = change.base if change.base is not None else {child.budget: child.share_ppm for child in planned.children}
    theirs = {name: share for name, share in shares.items() if name in budgets and budgets[name].parent == planned.parent}
    base = {name: trees.own_share(budgets[name], planned.cluster) for name in theirs}
    after = {**budgets, **{name: trees.with_share(budgets[name], share, planned.cluster) for name, share in theirs.items()}}
    return after, Step(change, "ended", shares) if change.runs else Step(change, "begun", base)


def _taken_together(budgets: Budgets, changes: Sequence[OpenChange]) -> tuple[Budgets, Sequence[Step]]:
    """What ends, ends before what begins."""
    steps = []
    for change in sorted(changes, key=lambda each: (not each.runs, each.number)):
        budgets, step = _taken(budgets, change)
        steps.append(step)
    return budgets, steps


def _begun_now(
    tree: Tree, opened: Sequence[OpenChange], new: OpenChange, intent: Intent, now_ms: Ms, asking: Asking
) -> Plan | Rejection:
    after, step = _taken(tree.budgets, new)
    running = new._replace(base=step.base)
    faults = [*overreach(tree.budgets, after, asking), *validate_change(tree.budgets, after)]
    faults += _covered(tree.budgets, after, opened) or faults_ahead(after, [*opened, running])
    if faults:
        return Rejection(tree.revision, faults)
    why = intent._replace(reason=_story([step]))
    return Plan(new.planned, Written(trees.commit(tree, why, after, now_ms), [step]))


# -------------------------------------------------------------------------------------------------------------------- the faults


def faults_ahead(budgets: Budgets, opened: Sequence[OpenChange]) -> list[Problem]:
    """The faults of the first instant at which the tree is not valid, each naming the instant and what happens there."""
    for moment in ahead(budgets, opened):
        if found := validate_change(moment.before, moment.after):
            what = ", ".join(
                f"change {step.change.planned.change} of {step.change.planned.author} {_does(step)}" for step in moment.steps
            )
            when = f"from {format_instant(moment.at_ms)} on, when {what}"[:400]
            return [Problem(code=fault.code, sentence=f"{when}: {fault.sentence}"[:1_000]) for fault in found]
    return []


def _does(step: Step) -> str:
    return "begins" if step.step == "begun" else "ends"


def _covered(before: Budgets, after: Budgets, opened: Sequence[OpenChange]) -> list[Problem]:
    faults = []
    for each in opened:
        cluster, parent = each.planned.cluster, each.planned.parent
        if any(
            trees.own_share(before[name], cluster) != trees.own_share(after[name], cluster)
            for name in each.base or ()
            if name in before and name in after and before[name].parent == after[name].parent == parent
        ):
            until = format_instant(each.next_ms)
            sentence = (
                f"until {until} the shares below {quote(parent)} are those of {_called(each)}: plan others from then on, "
                f"or end it before (`allmende budgets call-off {each.planned.change}`)"
            )
            faults.append(Problem(code="dated_running", sentence=sentence[:1_000]))
    return faults


def _no_dates(asked: PlanShares) -> Iterator[Problem]:
    if asked.effective_from_ms is None and asked.effective_until_ms is None:
        yield Problem(code="no_dates", sentence="neither a beginning nor an end is given: set the shares at once, without dates")


def date_faults(begin: Ms | None, end: Ms | None, now_ms: Ms) -> Iterator[Problem]:
    """`from_in_past`, `until_before_from`: of what is planned, and of what is asked for."""
    if begin is not None and begin <= now_ms:
        sentence = f"it should begin at {format_instant(begin)}, which has passed: leave the beginning out for at once"
        yield Problem(code="from_in_past", sentence=sentence)
    if end is not None and end <= max(now_ms, begin or 0):
        sentence = f"it should end at {format_instant(end)}, which is not after its beginning"
        yield Problem(code="until_before_from", sentence=sentence)


def _room_faults(planned: PlannedShares, opened: Sequence[OpenChange]) -> Iterator[Problem]:
    if len(opened) >= MAX_OPEN:
        sentence = f"{len(opened)} dated changes are planned or running already, as many as there may be: call one off first"
        yield Problem(code="too_many_dated", sentence=sentence)
    if (size := len(json.encode(planned))) > MAX_CHANGE_BYTES:
        sentence = (
            f"the change takes {size} bytes, at most {MAX_CHANGE_BYTES}: {quote(planned.parent)} has too many children for a date"
        )
        yield Problem(code="change_too_large", sentence=sentence)


def overlap_faults(new: OpenChange, opened: Sequence[OpenChange], now_ms: Ms) -> Iterator[Problem]:
    """`dated_overlap` for each other change of the same parent that is in the way; both are named."""
    for other in opened:
        if other.planned.parent == new.planned.parent and _meet(new, other, now_ms):
            call_off = f"choose other dates, or call it off first (`allmende budgets call-off {other.planned.change}`)"
            way_out = "its renewal is asked, decide that first" if other.renewal is not None else call_off
            sentence = (
                f"{_called(new)} and {_called(other)} overlap: "
                f"of one budget's children only one dated change may hold at a time; {way_out}"
            )
            yield Problem(code="dated_overlap", sentence=sentence[:1_000])


def _meet(one: OpenChange, other: OpenChange, now_ms: Ms) -> bool:
    """Whether two changes of one parent are in each other's way. One for good is an instant: it may lie where an overlay ends."""
    if one.until_ms is None and other.until_ms is None:
        return one.planned.from_ms == other.planned.from_ms
    (one_from, one_until), (other_from, other_until) = _interval(one, now_ms), _interval(other, now_ms)
    return one_from < other_until and other_from < one_until


def _interval(change: OpenChange, now_ms: Ms) -> tuple[Ms, Ms]:
    # What is due and not done yet is done in a moment; what is renewed has no end yet.
    begin = change.planned.from_ms if change.runs else max(change.planned.from_ms, now_ms)
    if change.until_ms is None:
        return begin, begin + 1
    return begin, _NEVER if change.renewal is not None else max(change.until_ms, begin + 1)


_NEVER: Ms = 2**62


# --------------------------------------------------------------------------------------------------------------------- the words


def _called(one: OpenChange) -> str:
    planned = one.planned
    until = "for good" if one.until_ms is None else f"until {format_instant(one.until_ms)}"
    return f"change {planned.change} of {quote(planned.author)} (from {format_instant(planned.from_ms)} {until})"


def _story(steps: Sequence[Step]) -> str:
    """The reason that the history of the tree gives: of each step the reason of its plan."""
    return trees.shortened("; ".join(_noted(step.change, step.change.planned.reason, _does(step)) for step in steps))


def _noted(one: OpenChange, reason: str, what: str) -> str:
    note = f" (dated change {one.planned.change} {what})"
    return trees.shortened(reason.strip(), trees.REASON_MOST - len(note)) + note


def _not_a_manager(tree: Tree, parent: str, person: str) -> Problem:
    who = those(nearest_managers(tree.budgets, parent))
    return Problem(code="not_a_manager", sentence=f"{quote(person)} may not divide {quote(parent)}; {who} may")
