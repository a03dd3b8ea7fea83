"""Cordons and drains (contract §7): what is said of a node, who leaves it and when, and when it is empty. Pure.

Never ends a slice, not even for a deadline.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from allmende.preemptor.model import Attempt, Cordon, Drain, Ended, OrderedOut, Policy, Word
from allmende.proto.units import Ms

CORDONED = "cordoned"
DRAINED = "drained"
RETURNED = "returned"
DRAIN = "drain"


def in_sight(cordon: Cordon | None, now_ms: Ms) -> bool:
    """Is or will the node be cordoned by this?"""
    return cordon is not None and (cordon.until_ms is None or now_ms < cordon.until_ms)


def terms_of(drain: Drain, now_ms: Ms) -> Cordon | None:
    """The terms of whoever wants the node cordoned, taken together; None: nobody does.

    It begins with the first, ends with the last, and is a drain where one wants that. The operator's name and words come first.
    """
    wanted = [each for each in (drain.operator, drain.agent) if each is not None and in_sight(each, now_ms)]
    if not wanted:
        return None
    ends = [each.until_ms for each in wanted]
    deadlines = [each.deadline_ms for each in wanted if each.deadline_ms is not None]
    return Cordon(
        by=wanted[0].by,
        reason="; ".join(dict.fromkeys(each.reason for each in wanted)),
        drain=any(each.drain for each in wanted),
        from_ms=min(each.from_ms for each in wanted),
        until_ms=None if None in ends else max(end for end in ends if end is not None),
        deadline_ms=min(deadlines, default=None),
    )


def in_mode(drain: Drain, *, evicts: bool) -> Drain:
    """In a mode that evicts nobody (contract §8) an agent's word only cordons. An operator who drains a node says so himself."""
    if evicts or drain.agent is None:
        return drain
    return drain._replace(agent=drain.agent._replace(drain=False))


def agents_wish(cluster: str, reason: str | None, reported_at_ms: Ms, had: Cordon | None) -> Cordon | None:
    """What a node's newest report wants: a drain with a reason, from the report that began it; None: nothing."""
    if reason is None:
        return None
    return Cordon(by=cluster, reason=reason, drain=True, from_ms=reported_at_ms if had is None else had.from_ms)


def is_empty(drain: Drain, occupied: bool, grants_heard: int) -> bool:
    """Nobody holds a GPU there and no grant is on its way: admission knows the terms, and we know all that it granted before."""
    closed = drain.closed
    return (
        not occupied
        and closed is not None
        and closed.revision >= drain.terms_revision > 0
        and closed.newest_grant_seq <= grants_heard
    )


def words(drain: Drain, occupied: bool, grants_heard: int, now_ms: Ms, ended: Ended | None = None) -> tuple[Word, ...]:
    """What has to be said of the node now; nothing where it was said already.

    `ended`: who has just ended its cordon and why. One that ends by itself, or with its agent's word, is told in its own words.
    """
    terms = terms_of(drain, now_ms)
    if terms is None:
        if drain.terms is None:
            return ()
        return (Word(RETURNED, drain.terms if ended is None else drain.terms._replace(by=ended.by, reason=ended.reason)),)
    if terms != drain.terms:
        # Admission answers to these terms before the node can be called drained.
        return (Word(CORDONED, terms),)
    if drain.said == CORDONED and terms.drain and terms.from_ms <= now_ms and is_empty(drain, occupied, grants_heard):
        return (Word(DRAINED, terms),)
    return ()


def leaving(drains: Iterable[Drain], attempts: Sequence[Attempt], policy: Policy, now_ms: Ms) -> tuple[OrderedOut, ...]:
    """Whoever must leave now: interruptible, not on his way out already, with a replica on a node whose drain is in force."""
    draining: Mapping[str, Cordon] = {
        drain.node: terms
        for drain in drains
        if (terms := terms_of(drain, now_ms)) is not None and terms.drain and terms.from_ms <= now_ms
    }
    found = []
    for attempt in sorted(attempts, key=lambda each: each.attempt):
        node = next((name for name, gpus in attempt.held if gpus and name in draining), None)
        if node is None or attempt.leaving or not attempt.interruptible(now_ms):
            continue
        whose = "the attempt is unallocated" if attempt.budget is None else "the attempt's slice has passed"
        terms = draining[node]
        sentence = f"node {node} is drained by {terms.by} ({terms.reason}), and {whose}"[:1_000]
        grace_ms = policy.unallocated_grace_ms if attempt.budget is None else policy.grace_ms
        found.append(OrderedOut(attempt, node, sentence, grace_ms))
    return tuple(found)


def leaves_by_ms(attempt: Attempt, terms: Cordon, policy: Policy, now_ms: Ms) -> Ms | None:
    """When an attempt is gone at the latest, if it has not been told to leave yet; None: nobody knows.

    For one that is told already this is as late as if it were told now.
    """
    if attempt.overdue:
        return None
    told_ms = max(now_ms, terms.from_ms)
    if attempt.budget is None:
        return told_ms + policy.unallocated_grace_ms
    if attempt.protected_until_ms is None:
        return None
    return max(told_ms, attempt.protected_until_ms) + policy.grace_ms


def state_of(drain: Drain, terms: Cordon, now_ms: Ms) -> Literal["announced", "cordoned", "draining", "drained"]:
    """One word for where a cordoned node stands."""
    if now_ms < terms.from_ms:
        return "announced"
    if not terms.drain:
        return "cordoned"
    return "drained" if drain.said == DRAINED and drain.terms == terms else "draining"


def stage_of(attempt: Attempt, now_ms: Ms) -> Literal["protected", "interruptible", "leaving", "overdue", "starting"]:
    """One word for an attempt on such a node."""
    if attempt.leaving:
        return "overdue" if attempt.overdue else "leaving"
    if attempt.interruptible(now_ms):
        return "interruptible"
    return "starting" if attempt.protected_until_ms is None else "protected"


def next_change_ms(drains: Iterable[Drain], now_ms: Ms) -> Ms | None:
    """The next instant at which a cordon begins or ends by itself."""
    edges = [
        edge
        for drain in drains
        for cordon in (drain.operator, drain.agent)
        if cordon is not None
        for edge in (cordon.from_ms, cordon.until_ms)
        if edge is not None and edge > now_ms
    ]
    return min(edges, default=None)


def faults_of(cordon: Cordon, now_ms: Ms, asked_from_ms: Ms | None) -> tuple[str, ...]:
    """What is wrong with an operator's cordon; every fault."""
    found = []
    if not cordon.reason.strip():
        found.append("a cordon needs a reason: whoever finds the node will ask for it")
    if asked_from_ms is not None and asked_from_ms < now_ms:
        found.append("it begins in the past; leave the beginning out to begin at once")
    if cordon.until_ms is not None and cordon.until_ms <= max(now_ms, cordon.from_ms):
        found.append("it would end before it begins")
    if cordon.deadline_ms is not None and not cordon.drain:
        found.append("a deadline belongs to a drain: nobody has to leave a node that is only cordoned")
    if cordon.deadline_ms is not None and cordon.deadline_ms < max(now_ms, cordon.from_ms):
        found.append("the deadline lies before its beginning")
    return tuple(found)
