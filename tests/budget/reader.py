"""A reader of the tree as every service is one: it keeps the newest word on each budget and switches only on a whole revision."""

from collections.abc import Mapping

from allmende.proto.budget import Budget, BudgetChanged, RevisionComplete
from allmende.proto.message import Message
from allmende.proto.tree import is_whole


class Reader:
    """`tree` is what holds; None until the first whole revision."""

    def __init__(self) -> None:
        self.revision = 0
        self.tree: Mapping[str, Budget] | None = None
        self._known: dict[str, BudgetChanged] = {}
        self._complete: RevisionComplete | None = None

    def hear(self, body: Message) -> None:
        """Take in one message, in any order and any number of times."""
        if isinstance(body, BudgetChanged):
            before = self._known.get(body.budget)
            if before is None or before.revision < body.revision:
                self._known[body.budget] = body
        elif isinstance(body, RevisionComplete) and (self._complete is None or self._complete.revision < body.revision):
            self._complete = body
        self._switch()

    def _switch(self) -> None:
        whole = self._complete
        if whole is None or whole.revision <= self.revision:
            return
        tree = {name: change.definition for name, change in self._known.items() if change.definition is not None}
        if is_whole(tree, whole.budgets, whole.digest):
            self.tree, self.revision = tree, whole.revision
