"""Were evictions lawful and explained? By the cluster's own log of signals, not by what anybody said about them. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from allmende.agent.audit.history import History, Ran
from allmende.agent.synthetic.truth import Signalled
from allmende.proto.admission import AttemptProtected
from allmende.proto.preemptor import EvictionOrdered
from allmende.proto.units import Ms


class EvictionsAudit(NamedTuple):
    """`slice_violations` and `unexplained` must be 0."""

    evictions: int
    """Attempts that an eviction's signal ended."""
    slice_violations: int
    """Attempts that an eviction signalled before their slice had passed."""
    unexplained: int
    """Attempts that an eviction signalled, whose plan nobody heard ordered with a rule, a sentence and numbers."""


def audit_evictions(history: History, protections: Iterable[AttemptProtected], orders: Iterable[EvictionOrdered]) -> EvictionsAudit:
    """Judge every attempt that received a signal for an eviction."""
    protected_until_ms = {each.attempt: each.protected_until_ms for each in protections}
    explained = {(each.attempt, each.plan) for each in orders if is_explained(each)}
    evictions = violations = unexplained = 0
    for ran in history.attempts.values():
        signals = [signal for signal in ran.signals if signal.cause == "eviction"]
        if not signals:
            continue
        evictions += was_evicted(ran)
        violations += signals[0].at_ms < _protected_until_ms(ran, protected_until_ms)
        unexplained += any((ran.attempt, signal.name) not in explained for signal in signals)
    return EvictionsAudit(evictions, violations, unexplained)


def was_evicted(ran: Ran) -> bool:
    """True when the attempt left because of an eviction's signal, which is the first it had."""
    return ran.by in {"TERM", "KILL"} and bool(ran.signals) and _first(ran).cause == "eviction"


def is_explained(order: EvictionOrdered) -> bool:
    """A rule, a sentence, and numbers: the ratios compared, or numbers in the sentence. Unallocated work has no ratio to show."""
    numbers = (
        order.compared is not None or order.protected_until_ms is None or any(character.isdigit() for character in order.sentence)
    )
    return bool(order.rule and order.sentence and numbers)


def _protected_until_ms(ran: Ran, heard: dict[str, Ms]) -> Ms:
    """The later of what the cluster's own start says and what was published: a promise is kept, even a wrong one."""
    return max(ran.started_at_ms + ran.slice_ms, heard.get(ran.attempt, 0))


def _first(ran: Ran) -> Signalled:
    return ran.signals[0]
