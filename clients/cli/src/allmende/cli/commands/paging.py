"""Answers that come in pages, put together. Asks again until the service says that there is no more; decides nothing."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import Session
from allmende.proto.subjects import Request


class Onward(Protocol):
    """A page that says after what the next one goes on; None: it was the last."""

    @property
    def next_after(self) -> object:
        """The mark that the next query gives as its `after`."""


class Backward(Protocol):
    """A page, newest first, that says before what the next one goes on; None: there are no older ones."""

    @property
    def next_before(self) -> object:
        """The mark that the next query gives as its `before`."""


T = TypeVar("T")
P = TypeVar("P", bound=Onward)
B = TypeVar("B", bound=Backward)

# What the services ask for at least: a shorter end of an id would name too many things.
SHORTEST_END = 4
LONGEST_END = 26


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


async def newest(
    opened: Session, row: Request, query: Struct, reply: type[B], rows_of: Callable[[B], Sequence[T]], most: int
) -> tuple[T, ...]:
    """The newest that a query finds, so many at the most. It has a `before` and a `limit`; both are set here.

    Raises:
        CommandFailed: refused, or nobody answered.
    """
    found: list[T] = []
    before: object = None
    while len(found) < most:
        page = await opened.ask(row, replace(query, before=before, limit=most - len(found)), reply)
        found += rows_of(page)
        before = page.next_before
        if before is None:
            break
    return tuple(found)


async def ending_in(ending: str, find: Callable[[str], Awaitable[Sequence[T]]], *, thing: str, owner: str, listed_by: str) -> T:
    """The one thing whose id ends so. `find` gets the letters in lower case and brings two at the most.

    `thing`: what it is called; `owner`: whose id it is, in the sentence about letters that are none; `listed_by`: the command that
    lists them all.

    Raises:
        CommandFailed: none or several end so, or it is no end of an id.
    """
    letters = ending.lower()
    if not (SHORTEST_END <= len(letters) <= LONGEST_END and letters.isascii() and letters.isalnum()):
        raise CommandFailed(Exit.USAGE, f"{ending!r} is not a {owner}'s id, nor at least four of its last letters")
    found = await find(letters)
    if not found:
        raise CommandFailed(Exit.REFUSED, f"there is no {thing} {ending!r}; `{listed_by}` lists them")
    if len(found) > 1:
        raise CommandFailed(Exit.USAGE, f"several {thing}s end in {ending!r}: give more letters of the id")
    return found[0]
