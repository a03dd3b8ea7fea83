"""Renewals: asking that an overlay should stay beyond its end, and giving that (decision 0027).

Pure. While nobody has answered the overlay stays; see `dated.due` for what it gives way to.
"""

from collections.abc import Iterator, Sequence

from allmende.budget.model import OpenChange, Rejection, Tree, Unchanged
from allmende.budget.rules.dated import Step, Written, faults_ahead, overlap_faults
from allmende.proto.budget import Budget
from allmende.proto.message import Problem
from allmende.proto.proposals import Propose, ShareProposed
from allmende.proto.tree_rules import quote
from allmende.proto.units import Ms, format_instant, format_share


def renewal_faults(row: Budget, asked: Propose, opened: Sequence[OpenChange], now_ms: Ms) -> Iterator[Problem]:
    """`not_renewable`, `renewal_dates`, `other_share`, `renewal_open`, `dated_overlap`. `asked.renews` is set."""
    one = next((each for each in opened if each.planned.change == asked.renews), None)
    given = {} if one is None else {child.budget: child.share_ppm for child in one.planned.children}
    if one is None or one.until_ms is None or one.planned.parent != row.parent or row.budget not in given:
        sentence = (
            f"{asked.renews} is no dated change of {quote(row.budget)} that has an end and is not over; "
            f"`allmende budgets planned` lists them"
        )
        yield Problem(code="not_renewable", sentence=sentence)
        return
    if asked.effective_from_ms is not None or asked.effective_until_ms is None or asked.effective_until_ms <= one.until_ms:
        sentence = f"change {asked.renews} ends at {format_instant(one.until_ms)}: a renewal says a later end, and no beginning"
        yield Problem(code="renewal_dates", sentence=sentence)
        return
    if asked.share_ppm != given[row.budget]:
        was = given[row.budget]
        has = "no share" if was is None else format_share(was)
        sentence = f"change {asked.renews} gives {quote(row.budget)} {has}: ask for another share with other dates, not by renewing"
        yield Problem(code="other_share", sentence=sentence)
    if one.renewal is not None:
        sentence = f"proposal {one.renewal} asks for the renewal of {asked.renews} already, and waits for an answer"
        yield Problem(code="renewal_open", sentence=sentence)
    yield from _overlaps(one, asked.effective_until_ms, opened, now_ms)


def renew(tree: Tree, asked: ShareProposed, opened: Sequence[OpenChange], now_ms: Ms) -> Written | Rejection:
    """Let an overlay stay until the end that was asked.

    Faults: `not_renewable` (it is over), `until_before_from`, `dated_overlap`, those of `tree_rules.validate` at a later instant.
    """
    one = next((each for each in opened if each.planned.change == asked.renews), None)
    until_ms = asked.effective_until_ms
    if one is None or one.until_ms is None or until_ms is None:
        sentence = f"change {asked.renews} is over: decline, and plan the shares anew"
        return Rejection(tree.revision, [Problem(code="not_renewable", sentence=sentence)])
    if until_ms <= max(now_ms, one.until_ms):
        sentence = f"it should stay until {format_instant(until_ms)}, which has passed, or is not after its end"
        return Rejection(tree.revision, [Problem(code="until_before_from", sentence=sentence)])
    longer = one._replace(until_ms=until_ms, renewal=None)
    faults = [*_overlaps(one, until_ms, opened, now_ms)]
    faults += faults_ahead(tree.budgets, [longer if each is one else each for each in opened])
    if faults:
        return Rejection(tree.revision, faults)
    return Written(Unchanged(tree.revision), [Step(one, "extended", {}, until_ms)])


def _overlaps(one: OpenChange, until_ms: Ms, opened: Sequence[OpenChange], now_ms: Ms) -> Iterator[Problem]:
    longer = one._replace(until_ms=until_ms, renewal=None)
    yield from overlap_faults(longer, [each for each in opened if each is not one], now_ms)
