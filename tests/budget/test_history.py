"""The history: as of a revision or an instant, what changed between two, what a late writer is told, the tree made anew from it."""

import msgspec
import pytest

from allmende.budget.handlers.trees import Handlers
from allmende.budget.model import Change, Commit, Intent, Rejection, Since, Tree
from allmende.budget.rules.trees import load_tree
from allmende.budget.store.trees import TreeStore
from allmende.budget.wire import reply
from allmende.proto.budget import Budget, PutBudgets, Rejected, RevisionRow, RevisionsQuery, TreeQuery, WriteReply
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.message import Problem
from allmende.proto.tree import digest
from tests.budget.builders import budget, tree
from tests.budget.replicas import refused
from tests.budget.test_service import TREE, committed, load, shares, whole
from tests.servers import Lab


async def revisions(handlers: Handlers, name: str | None = None) -> list[RevisionRow]:
    """All revisions, newest first, piece by piece."""
    found: list[RevisionRow] = []
    before: int | None = None
    while True:
        page = await handlers.revisions("bob", RevisionsQuery(before=before, budget=name))
        found += page.revisions
        before = page.next_before
        if before is None:
            return found


async def differing(handlers: Handlers, revision: int, other: int) -> dict[str, Budget]:
    """The budgets of a revision that were written between it and another one."""
    found: dict[str, Budget] = {}
    after: str | None = None
    while True:
        page = await handlers.tree("bob", TreeQuery(revision=revision, differs_from=other, after=after))
        found |= {row.budget: row for row in page.budgets}
        after = page.next_after
        if after is None:
            return found


def rejected(answer: WriteReply) -> Rejected:
    """The refusal of a write."""
    assert answer.rejected is not None, answer
    return answer.rejected


async def story(handlers: Handlers) -> None:
    """Four revisions: a tree, other shares, a new budget, and a smaller tree."""
    assert committed(await load(handlers)) == ("committed", 1)
    assert committed(await handlers.set_shares("ada", shares("lab", 1, a=400_000, b=0))) == ("committed", 2)
    new = PutBudgets(budgets=(budget("n", "lab", "10%"),), expected_revision=2, reason="a new project")
    assert committed(await handlers.put_budgets("kim", new)) == ("committed", 3)
    assert committed(await load(handlers, tree("lab", "a < lab 40%", "n < lab 20%"), 2, expected=3)) == ("committed", 4)


async def test_the_history_says_who_when_why_and_how_much(handlers: Handlers) -> None:
    assert await revisions(handlers) == []
    await story(handlers)
    rows = await revisions(handlers)
    assert [(row.revision, row.author, row.reason, row.budgets, row.changed) for row in rows] == [
        (4, "grace", "agreed in May", 3, 4),
        (3, "kim", "a new project", 6, 1),
        (2, "ada", "agreed in June", 5, 1),
        (1, "grace", "agreed in May", 5, 5),
    ]
    assert [row.revision for row in await revisions(handlers, "n")] == [4, 3]
    assert await revisions(handlers, "ghost") == []


async def test_the_tree_at_a_revision_made_anew_from_the_changes_is_the_stored_one(handlers: Handlers) -> None:
    await story(handlers)
    built: dict[str, Budget] = {}
    for row in reversed(await revisions(handlers)):
        before = {} if row.revision == 1 else await differing(handlers, row.revision - 1, row.revision)
        after = await differing(handlers, row.revision, row.revision - 1)
        assert len({*before, *after}) == row.changed
        built = {name: each for name, each in built.items() if name not in before} | after
        assert (len(built), digest(built.values())) == (row.budgets, row.digest)
        assert built == await whole(handlers, row.revision)


async def test_a_writer_that_has_read_before_sees_the_tree_as_one_that_has_not(lab: Lab, handlers: Handlers) -> None:
    """Whatever was written since: by others, from nothing, gone and come, and not at all because it was rolled back."""
    db, remembering = await lab.database("budget"), TreeStore()

    async def same() -> Tree:
        async with db.transaction() as tx:
            seen = await remembering.tree_for_writing(tx)
            assert list(seen.budgets.items()) == list((await TreeStore().tree_for_writing(tx)).budgets.items())
        return seen

    assert (await same()).revision == 0
    await load(handlers)
    assert (await same()).revision == 1
    assert (await same()).revision == 1
    await handlers.set_shares("ada", shares("lab", 1, a=400_000, b=0))
    await handlers.put_budgets("kim", PutBudgets(budgets=(budget("n", "lab", "10%"),), expected_revision=2, reason="new"))
    assert (await same()).revision == 3

    async def written_and_rolled_back() -> None:
        async with db.transaction() as tx:
            seen = await remembering.tree_for_writing(tx)
            lost = load_tree(seen, Intent("eve", "lost", 3), tree("lab", "n < lab"), 1)
            assert isinstance(lost, Commit), lost
            await remembering.add(tx, lost)
            assert set((await remembering.tree_for_writing(tx)).budgets) == {"lab", "n"}
            raise LookupError("rolled back")

    with pytest.raises(LookupError, match="rolled back"):
        await written_and_rolled_back()
    assert (await same()).revision == 3
    assert committed(await load(handlers, tree("lab", "a < lab 40%", "n < lab 20%"), 2, expected=3)) == ("committed", 4)
    assert set((await same()).budgets) == {"lab", "a", "n"}


async def test_only_what_was_written_between_two_revisions(handlers: Handlers) -> None:
    await story(handlers)
    assert set(await differing(handlers, 1, 2)) == {"b"}
    assert set(await differing(handlers, 3, 1)) == {"b", "n"}
    assert set(await differing(handlers, 1, 3)) == {"b"}
    assert set(await differing(handlers, 4, 3)) == {"n"}
    assert set(await differing(handlers, 3, 4)) == {"b", "n", "x", "y"}
    assert await differing(handlers, 2, 2) == {}
    assert await differing(handlers, 1, 0) == await whole(handlers, 1)


async def test_as_of_an_instant(handlers: Handlers) -> None:
    await story(handlers)
    for row in await revisions(handlers):
        page = await handlers.tree("bob", TreeQuery(at_ms=row.effective_from_ms))
        # Several revisions may have begun in one millisecond: the last of them holds.
        assert page.effective_from_ms == row.effective_from_ms
        assert page.revision >= row.revision
    first = (await revisions(handlers))[-1]
    with pytest.raises(Refusal) as caught:
        await handlers.tree("bob", TreeQuery(at_ms=first.effective_from_ms - 1))
    assert caught.value.problem.code == "no_tree_then"
    assert (await handlers.tree("bob", TreeQuery(at_ms=first.effective_from_ms + 10**10))).revision == 4


async def test_a_stale_writer_gets_the_revision_in_force_and_the_difference(handlers: Handlers) -> None:
    await story(handlers)
    late = rejected(await handlers.set_shares("ada", shares("lab", 2, a=1, b=1)))
    assert (late.revision, [fault.code for fault in late.faults], late.more_changed) == (4, ["stale_revision"], 0)
    seen, now = await whole(handlers, 2), await whole(handlers, 4)
    assert {each.budget: (each.before, each.after) for each in late.changed} == {
        name: (seen.get(name), now.get(name)) for name in ("b", "n", "x", "y")
    }
    put = PutBudgets(budgets=(budget("a", "lab", "40%", title="A"),), expected_revision=3, reason="a title")
    assert [each.budget for each in rejected(await handlers.put_budgets("ada", put)).changed] == ["b", "n", "x", "y"]
    file = await load(handlers, TREE, 3, expected=1)
    assert refused(file) == ["stale_revision"]
    assert [each.budget for each in rejected(file).changed] == ["b", "n", "x", "y"]


async def test_who_expects_a_revision_that_is_not_there_yet_is_told_no_difference(handlers: Handlers) -> None:
    await story(handlers)
    ahead = rejected(await handlers.set_shares("ada", shares("lab", 9, a=1, n=1)))
    assert ([fault.code for fault in ahead.faults], ahead.changed, ahead.more_changed) == (["stale_revision"], (), 0)


async def test_a_refusal_for_another_reason_tells_no_difference(handlers: Handlers) -> None:
    await story(handlers)
    above = rejected(await handlers.set_shares("ada", shares("lab", 4, a=900_000, n=200_000)))
    assert (above.changed, above.more_changed) == ((), 0)


@pytest.mark.parametrize("people", [0, 3, 500])
def test_a_difference_of_any_size_fits_a_message(people: int) -> None:
    named = tuple(f"p{number:03d}" + "x" * 59 for number in range(people))
    row = budget("a", "lab", "1%", managers=named)
    changes = [Change(f"b{number}", row, row) for number in range(400)]
    faults = [Problem(code="stale_revision", sentence="s" * 1_000)] * 60
    answer = reply(Rejection(9, faults), Since(changes, 10_000))
    assert answer.rejected is not None
    assert len(msgspec.json.encode(answer)) < MAX_MESSAGE_BYTES
    assert len(answer.rejected.changed) + answer.rejected.more_changed == 10_000
