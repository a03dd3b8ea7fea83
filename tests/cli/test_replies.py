"""What the command line makes of replies: a stale revision, refusals, an empty tree, a silent service."""

from typing import Any

import pytest
from msgspec import Struct

from allmende.cli.commands import budgets
from allmende.cli.errors import CommandFailed, Exit
from allmende.proto.budget import Budget, Committed, Rejected, WriteReply
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
        budgets._committed(reply, 3)
    assert failed.value.exit_code == code
    assert sentence in str(failed.value)


def test_a_write_that_was_done() -> None:
    done = Committed(status="committed", revision=4)
    assert budgets._committed(WriteReply(committed=done), 3) == done


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
    assert budgets._differences(before, after) == [
        "c: gone",
        "a: 50% -> 25%",
        "b: other people or another title",
        "d: new, 0.0001% of a",
    ]
    assert budgets._differences(before, before) == []
    moved = (lab, *before[1:3], Budget(budget="c", parent="b"))
    assert budgets._differences(before, moved) == ["c: unset -> unset, moved from a to b"]
