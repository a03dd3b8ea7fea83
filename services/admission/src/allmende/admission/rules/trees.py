"""Reading the tree of budgets as it comes: one message a budget, in force only when a whole revision is known (contract §2).

Pure. Never judges a tree: the budget service published only valid ones.
"""

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.values import KnownBudget, KnownRevision, Tree
from allmende.proto import tree
from allmende.proto.budget import Budget


def heard_budget(books: Books, known: KnownBudget) -> None:
    """Note a definition, unless a newer one is known."""
    had = books.known.get(known.budget)
    if had is None or had.revision < known.revision:
        if known.definition is None and had is not None:
            known = replace(known, members=had.members if had.definition is None else had.definition.members)
        books.put_known(known)


def heard_revision(books: Books, complete: KnownRevision) -> None:
    """Note that a revision is complete, unless a newer one is known to be."""
    if books.newest is None or books.newest.revision < complete.revision:
        books.put_newest(complete)


def switch(books: Books) -> Tree | None:
    """The tree to put in force now, or None: not whole yet, or in force already."""
    newest = books.newest
    if newest is None or (books.tree is not None and books.tree.revision >= newest.revision):
        return None
    budgets = {name: known.definition for name, known in books.known.items() if known.definition is not None}
    if not tree.is_whole(budgets, newest.budgets, newest.digest):
        return None
    return made(newest.revision, budgets)


def made(revision: int, budgets: dict[str, Budget]) -> Tree:
    """A tree with its paths and leaves worked out."""
    return Tree(revision=revision, budgets=budgets, paths=tree.paths(budgets), leaves=tree.leaves(budgets))
