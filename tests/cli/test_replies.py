"""What the command line makes of replies: a stale revision, refusals, an empty tree, a silent service."""

from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from allmende.cli.commands import budgets, writes
from allmende.cli.commands.tree import WholeTree
from allmende.cli.errors import CommandFailed, Exit
from allmende.proto.budget import Budget, BudgetDiff, ChildShare, ClusterShare, Committed, Rejected, WriteReply
from allmende.proto.message import Problem


def rejected(*codes: str) -> WriteReply:
    return WriteReply(rejected=Rejected(revision=5, faults=tuple(Problem(code=code, sentence=f"{code}!") for code in codes)))


@pytest.mark.parametrize(
    ("reply", "code", "sentence"),
    [
        (rejected("stale_revision"), Exit.STALE, "(3 -> 5)"),
        (rejected("invalid_name", "stale_revision"), Exit.STALE, "look again"),
        (rejected("invalid_name", "too_deep"), Exit.REFUSED, "invalid_name!; too_deep!"),
        (WriteReply(), Exit.REFUSED, "without a reason"),
    ],
)
def test_a_write_that_was_refused(reply: WriteReply, code: Exit, sentence: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        writes.committed(reply, 3)
    assert failed.value.exit_code == code
    assert sentence in str(failed.value)


def test_a_write_that_was_done() -> None:
    done = Committed(status="committed", revision=4)
    assert writes.committed(WriteReply(committed=done), 3) == done


def test_shares_that_change_nothing_are_not_told_as_a_change() -> None:
    tree = WholeTree(revision=4, author="ada", reason="", budgets=(Budget(budget="a", parent="lab", share_ppm=500_000),))
    child = ChildShare(budget="a", share_ppm=500_000)
    for cluster in (None, "c1"):
        same = budgets._changes(tree, (child,), cluster, Committed(status="unchanged", revision=4))
        assert same == "nothing differs from revision 4"
    other = budgets._changes(tree, (replace(child, share_ppm=1),), None, Committed(status="committed", revision=5))
    assert other == "revision 5\na: 50% -> 0.0001%"


class Answers:
    """In a session's stead: every question has one answer."""

    def __init__(self, failure: CommandFailed) -> None:
        self.failure = failure

    async def ask(self, _row: object, _request: Struct, _reply: type[Struct]) -> Struct:
        raise self.failure


async def test_a_first_load_expects_revision_0() -> None:
    nothing: Any = Answers(CommandFailed(Exit.REFUSED, "no tree yet", "no_tree"))
    assert (await budgets._tree_in_force(nothing)).revision == 0
    silent: Any = Answers(CommandFailed(Exit.UNREACHABLE, "silence"))
    with pytest.raises(CommandFailed, match="silence"):
        await budgets._tree_in_force(silent)


def test_a_load_says_what_it_changes() -> None:
    lab = Budget(budget="lab")
    before = (
        lab,
        Budget(budget="a", parent="lab", share_ppm=500_000),
        Budget(budget="b", parent="lab"),
        Budget(budget="c", parent="a"),
    )
    after = (
        lab,
        Budget(budget="a", parent="lab", share_ppm=250_000),
        Budget(budget="b", parent="lab", members=("ada",)),
        Budget(budget="d", parent="a", share_ppm=1),
    )
    assert list(writes.difference(writes.differences(before, after))) == [
        "c: gone",
        "a: 50% -> 25%",
        "b: member ada added",
        "d: new, 0.0001% of a",
    ]
    assert writes.differences(before, before) == ()
    there = [
        replace(each, cluster_shares=(ClusterShare(cluster="c2", share_ppm=50_000),)) if each.share_ppm else each for each in before
    ]
    changed = [each for each in before if each.share_ppm]
    assert list(writes.difference(writes.differences(before, there))) == [
        f"{each.budget}: {writes.share(each.share_ppm)} -> {writes.share(each.share_ppm)} (c2 5%)" for each in changed
    ]
    moved = (lab, *before[1:3], Budget(budget="c", parent="b"))
    assert list(writes.difference(writes.differences(before, moved))) == ["c: unset -> unset, moved from a to b"]


def people(managers: str = "", members: str = "", title: str = "") -> Budget:
    return Budget(budget="a", parent="lab", title=title, managers=tuple(managers.split()), members=tuple(members.split()))


@pytest.mark.parametrize(
    ("sentence", "before", "after", "words"),
    [
        ("came and went", people("ada", "bob"), people("eve", "bob"), "manager eve added, manager ada removed"),
        ("both roles", people("ada", "bob"), people("ada bob", ""), "manager bob added, member bob removed"),
        ("the order counts", people("ada eve"), people("eve ada"), "managers in another order"),
        ("a title", people(), people(title="Hands"), "title 'Hands'"),
        ("a title taken away", people(title="Hands"), people(), "no title any more"),
    ],
)
def test_changes_of_people_and_titles_in_words(sentence: str, before: Budget, after: Budget, words: str) -> None:
    assert list(writes.difference(writes.differences([before], [after]))) == [f"a: {words}"], sentence


def test_a_stale_write_names_ten_changes_and_counts_the_rest() -> None:
    changed = tuple(BudgetDiff(budget=f"b{number}", before=None, after=None) for number in range(12))
    refused = Rejected(revision=5, faults=(Problem(code="stale_revision", sentence="s"),), changed=changed, more_changed=7)
    with pytest.raises(CommandFailed, match=r"Since then: b0: gone; .*; b9: gone; and 9 budgets more$"):
        writes.committed(WriteReply(rejected=refused), 3)
