"""What is learnt of an attempt from messages that may come in any order, and when its usage is complete.

The first word on anything stands; a different second word is a fault. Never touches counters.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from allmende.ledger import errors
from allmende.ledger.model import Attempt, AttemptKey, Counter, Ended, Fact, Fault, Granted, Protected, Started

# An attempt.ended carries at most this many finals; larger gangs send the others with their nodes' last ticks.
FINALS_MAX = 256
# The outcome of an attempt of which an operator, and not its agent, says that it is dead.
DECLARED_LOST = "declared_lost"


class Learnt(NamedTuple):
    """The attempts after a batch of facts: those that changed, and which of them got their grant or their end just now."""

    attempts: Mapping[AttemptKey, Attempt]
    changed: frozenset[AttemptKey]
    priced: frozenset[AttemptKey]
    faults: tuple[Fault, ...]


def learn(known: Mapping[AttemptKey, Attempt], facts: Iterable[Fact]) -> Learnt:
    """Take in facts, in any order. `priced` in the result: attempts whose counters must be settled anew."""
    attempts = dict(known)
    changed: set[AttemptKey] = set()
    priced: set[AttemptKey] = set()
    faults: list[Fault] = []
    for fact in facts:
        key = (fact.cluster, fact.attempt)
        before = attempts.get(key, Attempt(*key))
        after = _after(before, fact)
        if isinstance(after, Fault):
            faults.append(after)
        elif after != before:
            attempts[key] = after
            changed.add(key)
            if isinstance(fact, Granted | Ended):
                priced.add(key)
    return Learnt(attempts, frozenset(changed), frozenset(priced), tuple(faults))


def first_grants(known: Mapping[AttemptKey, Attempt], facts: Iterable[Fact]) -> tuple[Granted, ...]:
    """The grants that stand: of each attempt that had none the first one, as `learn` takes it."""
    first: dict[AttemptKey, Granted] = {}
    for fact in facts:
        key = (fact.cluster, fact.attempt)
        if isinstance(fact, Granted) and (key not in known or known[key].grant is None):
            first.setdefault(key, fact)
    return tuple(first.values())


def _after(attempt: Attempt, fact: Fact) -> Attempt | Fault:
    match fact:
        case Granted():
            if attempt.grant is not None and attempt.grant != fact.grant:
                return _fault(fact, errors.GRANT_CHANGED, "the attempt was granted before, on other terms; the first ones stand")
            return attempt._replace(grant=fact.grant)
        case Started():
            if attempt.started_at_ms not in (None, fact.started_at_ms):
                sentence = f"started at {attempt.started_at_ms} as said before, not at {fact.started_at_ms}"
                return _fault(fact, errors.START_CHANGED, sentence)
            return attempt._replace(started_at_ms=fact.started_at_ms)
        case Protected():
            if attempt.protected_until_ms is not None:
                return attempt
            return attempt._replace(protected_from_ms=fact.from_ms, protected_until_ms=fact.until_ms)
        case Ended():
            if attempt.ended_at_ms is not None and DECLARED_LOST in (attempt.outcome, fact.outcome):
                # An agent that returns says later when it killed it. That is no fault, and does not open the books again.
                return attempt
            if attempt.ended_at_ms not in (None, fact.ended_at_ms):
                sentence = f"ended at {attempt.ended_at_ms} as said before, not at {fact.ended_at_ms}"
                return _fault(fact, errors.END_CHANGED, sentence)
            return attempt._replace(ended_at_ms=fact.ended_at_ms, outcome=attempt.outcome or fact.outcome)


def _fault(fact: Fact, code: str, sentence: str) -> Fault:
    return Fault(fact.event, fact.cluster, fact.attempt, code, f"attempt {fact.attempt}: {sentence}", 0)


def is_complete(attempt: Attempt, counters: Iterable[Counter]) -> bool:
    """True when nothing more can come that would be posted: the agent may forget the attempt.

    Granted, ended, and for every replica either its final counter came with the end, or some epoch reaches the end. A replica that
    was never heard of when others sent their finals had not begun; nor had an attempt without start and counters. What never
    started has no counters; the last counters of a lost node are lost with it, and death ends at the last counter (contract §3).
    """
    if attempt.grant is None or attempt.ended_at_ms is None:
        return False
    if attempt.outcome in ("never_started", "node_lost", DECLARED_LOST):
        return True
    heard: set[int] = set()
    done: set[int] = set()
    with_finals = False
    for each in counters:
        heard.add(each.replica)
        with_finals = with_finals or each.final
        if each.final or each.to_ms >= attempt.ended_at_ms:
            done.add(each.replica)
    if not heard:
        return attempt.started_at_ms is None
    if with_finals and attempt.grant.replicas <= FINALS_MAX:
        return done == heard
    return len(done) >= attempt.grant.replicas
