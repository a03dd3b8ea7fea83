"""What every command that writes the tree shares: the answer to a write, and changes of budgets in words. Pure."""

from collections.abc import Iterable, Iterator

from allmende.cli.errors import CommandFailed, Exit
from allmende.proto.budget import Budget, BudgetDiff, Committed, Rejected, WriteReply
from allmende.proto.units import format_share

STALE = "stale_revision"
# A sentence names this many changes of others; `allmende budgets diff` shows all.
_NAMED = 10


def committed(reply: WriteReply, read_at: int) -> Committed:
    """What a write left behind; `read_at`: the revision that its author expected.

    Raises:
        CommandFailed: it was refused; of a stale one the sentence says what others have changed since.
    """
    if reply.committed:
        return reply.committed
    raise refused(reply.rejected, read_at)


def refused(rejected: Rejected | None, read_at: int) -> CommandFailed:
    """The failure that a refused write is."""
    given = rejected or Rejected(revision=read_at, faults=())
    if any(fault.code == STALE for fault in given.faults):
        return stale(read_at, given.revision, given.changed, given.more_changed)
    sentences = "; ".join(fault.sentence for fault in given.faults) or "refused without a reason"
    return CommandFailed(Exit.REFUSED, f"nothing was changed: {sentences}", given.faults[0].code if given.faults else "")


def stale(read_at: int, now: int, changed: Iterable[BudgetDiff] = (), more: int = 0) -> CommandFailed:
    """The failure of a write whose author has not seen the newest tree."""
    lines = list(difference(changed))
    rest = len(lines) - _NAMED + more
    told = "; ".join(lines[:_NAMED]) + (f"; and {rest} budgets more" if rest > 0 else "")
    since = f". Since then: {told}" if lines else ""
    sentence = f"the tree changed since you read it ({read_at} -> {now}): look again, then repeat{since}"
    return CommandFailed(Exit.STALE, sentence, STALE)


def differences(before: Iterable[Budget], after: Iterable[Budget]) -> tuple[BudgetDiff, ...]:
    """The budgets that stand otherwise in the second tree: those that are gone, then the others in its order."""
    old, new = {each.budget: each for each in before}, {each.budget: each for each in after}
    gone = [BudgetDiff(budget=name, before=each, after=None) for name, each in old.items() if name not in new]
    others = [BudgetDiff(budget=name, before=old.get(name), after=each) for name, each in new.items() if old.get(name) != each]
    return (*gone, *others)


def difference(changed: Iterable[BudgetDiff]) -> Iterator[str]:
    """Changes in words, one line a budget."""
    for each in changed:
        match each:
            case BudgetDiff(after=None):
                yield f"{each.budget}: gone"
            case BudgetDiff(before=None, after=Budget(parent=None)):
                yield f"{each.budget}: new, the whole"
            case BudgetDiff(before=None, after=Budget() as new):
                yield f"{each.budget}: new, {shares(new)} of {new.parent}"
            case BudgetDiff(before=Budget() as old, after=Budget() as new) if old != new:
                yield f"{each.budget}: {', '.join(_parts(old, new))}"


def _parts(old: Budget, new: Budget) -> Iterator[str]:
    if old.share_ppm != new.share_ppm or old.cluster_shares != new.cluster_shares or old.parent != new.parent:
        moved = f", moved from {old.parent} to {new.parent}" if old.parent != new.parent else ""
        yield f"{shares(old)} -> {shares(new)}{moved}"
    if old.title != new.title:
        yield f"title {new.title!r}" if new.title else "no title any more"
    yield from _people("manager", old.managers, new.managers)
    yield from _people("member", old.members, new.members)


def _people(role: str, old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[str]:
    came = [person for person in new if person not in old]
    went = [person for person in old if person not in new]
    if came:
        yield f"{role} {', '.join(came)} added"
    if went:
        yield f"{role} {', '.join(went)} removed"
    if not came and not went and old != new:
        yield f"{role}s in another order"


def shares(each: Budget) -> str:
    """The share of a budget, and those that it has on single clusters."""
    own = ", ".join(f"{own.cluster} {format_share(own.share_ppm)}" for own in each.cluster_shares or ())
    return share(each.share_ppm) + (f" ({own})" if own else "")


def share(ppm: int | None) -> str:
    """A share as people write it; `unset` is not zero."""
    return "unset" if ppm is None else format_share(ppm)
