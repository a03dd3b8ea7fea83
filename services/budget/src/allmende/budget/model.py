"""Values of the budget service. A budget itself is `proto.budget.Budget`: the rule of trees is shared, so its value is too."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from allmende.proto.budget import Budget
from allmende.proto.dated import PlannedShares
from allmende.proto.message import Problem
from allmende.proto.notices import BudgetNotice, DeliveryState
from allmende.proto.proposals import State
from allmende.proto.units import Ms, Ppm

Budgets: TypeAlias = Mapping[str, Budget]
"""A tree: its budgets by name."""


class Tree(NamedTuple):
    """The tree in force: its revision (0: there is none yet) and its budgets by name."""

    revision: int
    budgets: Budgets


class Revision(NamedTuple):
    """One row of history. `digest` is `proto.tree.digest` of all its budgets, of which there are `budgets`."""

    number: int
    effective_from_ms: Ms
    author: str
    reason: str
    budgets: int
    digest: str


class Intent(NamedTuple):
    """Who writes, why, and on which revision he has looked."""

    author: str
    reason: str
    expected_revision: int


class Asking(NamedTuple):
    """Who asks for a write, by the name that the server has authenticated, and whether he is an operator."""

    name: str
    operator: bool


class Piece(NamedTuple):
    """A staged piece of an upload. `last`: no piece has a higher number."""

    number: int
    last: bool
    budgets: Sequence[Budget]


class ProposalFilter(NamedTuple):
    """Which proposals are meant; None does not restrict. `proposal`: the last letters of the id."""

    proposal: str | None
    budgets: Sequence[str] | None
    author: str | None
    state: State | None


class PastRevision(NamedTuple):
    """A row of the history with the number of budgets that it changed; where it closed one, with where its jobs went."""

    revision: Revision
    changed: int
    jobs_to: str | None


class Change(NamedTuple):
    """One budget in two revisions; None where it is not there."""

    budget: str
    before: Budget | None
    after: Budget | None


class Since(NamedTuple):
    """What others have changed since a revision: the first of the budgets, and how many there are in all."""

    changes: Sequence[Change]
    total: int


NOTHING_SINCE = Since((), 0)


class Commit(NamedTuple):
    """A write that makes a revision. `changed`: each budget that differs, None where it is gone; `jobs_to`: where its jobs go."""

    revision: Revision
    changed: Mapping[str, Budget | None]
    jobs_to: Mapping[str, str] = {}


class Unchanged(NamedTuple):
    """A write that says what holds already."""

    revision: int


class Rejection(NamedTuple):
    """A refused write, with every fault; `revision` is the one in force."""

    revision: int
    faults: Sequence[Problem]


Verdict: TypeAlias = Commit | Unchanged | Rejection

ChildShares: TypeAlias = Sequence[tuple[str, Ppm | None]]
"""Children of one parent with their new shares; None is unset, which is not zero."""


Shares: TypeAlias = Mapping[str, Ppm | None]
"""Shares by child; None is unset."""


class OpenChange(NamedTuple):
    """A dated change that is not over: planned, or an overlay that runs.

    `until_ms`: with extensions; None: for good. `base`: the shares that come back, None before it has begun.
    `renewal`: the proposal that asks to extend it and waits for an answer.
    """

    number: int
    planned: PlannedShares
    until_ms: Ms | None
    base: Shares | None
    renewal: str | None

    @property
    def runs(self) -> bool:
        """Whether it has begun."""
        return self.base is not None

    @property
    def next_ms(self) -> Ms:
        """The instant at which it begins, or ends."""
        return self.until_ms if self.runs and self.until_ms is not None else self.planned.from_ms


class Parcel(NamedTuple):
    """A delivery that is to be tried: for the how-manieth time, what, and the database's idea of real time in seconds."""

    number: int
    tries: int
    notice: BudgetNotice
    now_s: int


class DeliveryRow(NamedTuple):
    """How a notice fares. Instants are real time."""

    number: int
    notice: BudgetNotice
    state: DeliveryState
    tries: int
    problem: str
    next_try_at_ms: Ms | None
    settled_at_ms: Ms | None
