"""What the service says, read by somebody who hears it late, twice, shuffled and from the middle."""

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from allmende.budget.model import Commit, Intent, Tree
from allmende.budget.rules.trees import load_tree
from allmende.budget.wire import messages
from allmende.proto.budget import Budget
from allmende.proto.message import Message
from tests.budget.builders import valid_trees
from tests.budget.reader import Reader


def history(trees: Sequence[Sequence[Budget]]) -> tuple[list[Message], dict[int, dict[str, Budget]]]:
    """Everything that is said when one tree after another is loaded, and the tree of each revision."""
    said: list[Message] = []
    tree, revisions = Tree(0, {}), {}
    for rows in trees:
        verdict = load_tree(tree, Intent("ada", "because", tree.revision), rows, 1_700_000_000_000)
        if isinstance(verdict, Commit):
            said += messages(verdict)
            tree = Tree(verdict.revision.number, {row.budget: row for row in rows})
            revisions[tree.revision] = dict(tree.budgets)
    return said, revisions


@given(st.lists(valid_trees(6), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_reader_sees_whole_revisions_only_and_ends_with_the_newest(
    trees: list[tuple[Budget, ...]], chance: random.Random
) -> None:
    said, revisions = history(trees)
    heard = [*said, *chance.choices(said, k=len(said))]
    chance.shuffle(heard)
    reader, seen = Reader(), 0
    for body in heard:
        reader.hear(body)
        assert reader.revision >= seen
        seen = reader.revision
        if reader.tree is not None:
            assert reader.tree == revisions[reader.revision]
    assert reader.tree == revisions[max(revisions)]


@given(st.lists(valid_trees(6), min_size=2, max_size=4))
def test_a_reader_that_hears_everything_in_order_sees_every_revision(trees: list[tuple[Budget, ...]]) -> None:
    said, revisions = history(trees)
    reader, seen = Reader(), []
    for body in said:
        before = reader.revision
        reader.hear(body)
        if reader.revision != before:
            seen.append(reader.revision)
    assert seen == sorted(revisions)


@given(st.lists(valid_trees(6), min_size=1, max_size=3), st.data())
def test_a_reader_that_misses_one_message_keeps_what_it_had(trees: list[tuple[Budget, ...]], data: st.DataObject) -> None:
    said, revisions = history(trees)
    missed = data.draw(st.integers(0, len(said) - 1))
    reader = Reader()
    for place, body in enumerate(said):
        if place != missed:
            reader.hear(body)
            assert reader.tree is None or reader.tree == revisions[reader.revision]
