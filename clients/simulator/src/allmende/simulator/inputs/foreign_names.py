"""Names of another system as names of ours: 1 to 63 of a-z, 0-9, - and _, each used once.

The same names in the same order give the same result. Never gives two of theirs one name of ours.
"""

import re

from allmende.proto.ids import is_name
from allmende.proto.tree_rules import RESERVED_NAMES

_OTHER = re.compile(r"[^a-z0-9_-]+")
# Room for a number behind it.
_LONGEST = 56


class ForeignNames:
    """Gives each foreign text a name, and remembers it."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()
        self.changed = 0
        """How many could not stay as they were."""

    def of(self, text: str, kind: str = "") -> str:
        """The name of a text: itself where that is free and a name, else in lower case, `-` for other signs, numbered.

        Texts of different kinds are different things, also where they are spelt alike.
        """
        name = self._given.get((kind, text))
        if name is None:
            name = self._given[kind, text] = self._new(text)
            self._taken.add(name)
            self.changed += name != text
        return name

    def _new(self, text: str) -> str:
        # A budget called like a key of the budget file could not be written into one.
        if is_name(text) and text not in self._taken and text not in RESERVED_NAMES:
            return text
        stem = _OTHER.sub("-", text.lower())[:_LONGEST].strip("-_") or "unnamed"
        name, number = stem, 1
        while name in self._taken or name in RESERVED_NAMES:
            number += 1
            name = f"{stem}-{number}"
        return name
