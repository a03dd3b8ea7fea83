"""Answers that come in pages, put together. Asks again until the service says that there is no more; decides nothing."""

from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from allmende.cli.session import Session
from allmende.proto.subjects import Request


class Onward(Protocol):
    """A page that says after what the next one goes on; None: it was the last."""

    @property
    def next_after(self) -> object:
        """The mark that the next query gives as its `after`."""


P = TypeVar("P", bound=Onward)


async def pages(opened: Session, row: Request, query: Struct, reply: type[P]) -> list[P]:
    """All pages from the query's own `after` on, in their order, one at least. Each may be of its own instant.

    Raises:
        CommandFailed: refused, or nobody answered.
    """
    found: list[P] = []
    while not found or found[-1].next_after is not None:
        asked = replace(query, after=found[-1].next_after) if found else query
        found.append(await opened.ask(row, asked, reply))
    return found
