"""As whom a command runs: the submitter where the agent may change user, else only the agent's own user. Pure.

Never falls back to another account: a stranger's command does not run in the agent's name.
"""

from collections.abc import Callable
from typing import NamedTuple


class Account(NamedTuple):
    """One account of this machine."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


def account_for(user: str, own: Account, find: Callable[[str], Account | None]) -> Account | str:
    """The account that runs the command of `user`, or a sentence that says why none does.

    `own` is whom the agent runs as; `find` looks up an account of this machine by its name.
    """
    if own.uid != 0:
        if user == as_person(own.name):
            return own
        return f"this agent runs as {own.name} and may not become anybody else: it does not run jobs of {user}"
    found = own if user == as_person(own.name) else find(user)
    if found is None:
        return f"this machine has no account {user}"
    if found.uid == 0 and found.name != own.name:
        return f"the account {user} is an administrator's"
    return found


def as_person(name: str) -> str:
    """The name of an account as people of a lab are called: `Ann.Smith` becomes `ann-smith`."""
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "-" for letter in name.lower())
    return kept.strip("-_")[:63]
