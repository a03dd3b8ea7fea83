"""What of a message is not believed at all, and what it means to release it (contract §3, decision 0035).

Never books anything: what is released goes the way of everything that is heard.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from allmende.ledger import errors
from allmende.ledger.model import Claim, Ended, Fact, Fault, Grant, Limits, NodeStep, Reading, Started
from allmende.ledger.rules.counters import how_far_off
from allmende.proto.units import GpuMs, Ms


class Report(NamedTuple):
    """A node's report: when it was sent, and how far the sender's clock was ahead of ours then (below 0: behind)."""

    event: str
    sent_at_ms: Ms
    off_ms: Ms
    step: NodeStep


def believed_reports(reports: Iterable[Report], limits: Limits) -> tuple[Sequence[NodeStep], Sequence[Fault]]:
    """Reports of a right clock that lie in the present or past, and faults for the others."""
    good: list[NodeStep] = []
    faults: list[Fault] = []
    for event, sent_at_ms, off_ms, step in reports:
        ahead_ms = step.at_ms - min(limits.now_ms, sent_at_ms) - limits.allowance_ms
        if abs(off_ms) > limits.skew_ms:
            sentence = f"node {step.node}: {how_far_off(off_ms)}"
            faults.append(Fault(event, step.cluster, step.node, errors.CLOCK_OFF, sentence, 0, Claim(step=step)))
        elif ahead_ms > 0:
            sentence = f"node {step.node} reports for {ahead_ms} ms later than the clock allows"
            faults.append(Fault(event, step.cluster, step.node, errors.REPORT_AHEAD_OF_CLOCK, sentence, 0, Claim(step=step)))
        else:
            good.append(step)
    return good, faults


def believed_facts(
    facts: Iterable[Fact], readings: Sequence[Reading], off_ms: Mapping[str, Ms], limits: Limits
) -> tuple[list[Fact], list[Fault]]:
    """Facts without the starts and ends that were sent by a wrong clock. `off_ms`: by event; `readings` judge themselves.

    An end whose last counters are not believed must not be believed either: it would be confirmed, and the agent would forget them.
    So it is kept together with them.
    """
    good: list[Fact] = []
    faults: list[Fault] = []
    for fact in facts:
        off = off_ms.get(fact.event, 0)
        if not isinstance(fact, Started | Ended) or abs(off) <= limits.skew_ms:
            good.append(fact)
            continue
        finals = tuple(each for each in readings if each.event == fact.event)
        claim = Claim(started=fact) if isinstance(fact, Started) else Claim(finals, ended=fact)
        what = f"{fact.attempt}/{'started' if isinstance(fact, Started) else 'ended'}"
        faults.append(Fault(fact.event, fact.cluster, what, errors.CLOCK_OFF, f"{what}: {how_far_off(off)}", 0, claim))
    return good, faults


def claim_size(fault: Fault) -> Ms:
    """By which of two claims of one thing the greater is told: counters are cumulative, so it contains the other."""
    return sum(each.held_ms for each in fault.claim.readings) if fault.claim is not None else 0


class Held(NamedTuple):
    """An item of the quarantine: the greatest claim of one thing and reason. `claim` None: from before claims were kept."""

    what: str
    code: str
    excess_gpu_ms: GpuMs
    claim: Claim | None


class No(NamedTuple):
    """Why something cannot be released, and what would be right."""

    code: str
    sentence: str


_CORRECT: Final = "if the time was really used, it is to be charged with `allmende ledger correct`"
_STANDS: Final[Mapping[str, str]] = {
    errors.COUNTER_BACKWARDS: "the larger of two counters stands, and what is posted is for ever; if the smaller one is "
    "right, take the difference off the budget with `allmende ledger correct`",
    errors.SINCE_CHANGED: "one epoch has one beginning: the agent must say the other one under a new epoch, then it counts by "
    "itself; if it cannot any more, it is to be charged with `allmende ledger correct`",
    errors.FOREIGN_ATTEMPT: "another cluster was granted this attempt, and only that one is charged for it: the sender must be "
    "told which attempts are its own",
    errors.UNKNOWN_REPLICA: f"the grant has no such replica, so it has no price; {_CORRECT}",
    errors.BEFORE_GRANT: f"nothing is charged for the time before a grant; {_CORRECT}",
    errors.BEYOND_END: f"the attempt has ended, and nothing is charged after its end; {_CORRECT}",
    errors.EPOCHS_OVERLAP: "this time is counted already, by another epoch of the same replica: nothing is missing",
    errors.GRANT_CHANGED: "the first grant stands; to charge another budget, move the amount with `allmende ledger correct`",
    errors.START_CHANGED: "the first word on the start stands; it changes no charge",
    errors.END_CHANGED: f"the first word on the end stands; {_CORRECT}",
    errors.UNKNOWN_ATTEMPT: "nobody has granted this attempt, so it has no price and no budget: it counts by itself once the grant "
    "is heard; if there never was one, it is to be charged with `allmende ledger correct`",
}


def release(held: Held, grant: Grant | None, event: str, limits: Limits) -> Claim | No:
    """What is to be heard, as if it were said now by a right clock under the name `event`; or why it cannot be.

    `grant`: that of the claimed attempt, if it is known.
    """
    if held.code in _STANDS:
        return No("contradicts_the_books", f"{held.what}: {_STANDS[held.code]}")
    claim = held.claim
    if claim is None:
        return No("claim_not_kept", f"{held.what}: what was said then was not kept; it can be released when it is said again")
    if held.code == errors.AMOUNT_MISMATCH:
        if grant is None:
            return No("contradicts_the_books", f"{held.what}: {_STANDS[errors.UNKNOWN_ATTEMPT]}")
        claim = claim._replace(readings=tuple(replace(each, used_gpu_ms=each.held_ms * grant.gpus) for each in claim.readings))
    ahead_ms = _latest_ms(claim) - limits.now_ms - limits.allowance_ms
    if ahead_ms > 0:
        return No("not_yet", f"{held.what}: it speaks of a time that has not come: release it in {ahead_ms} ms")
    return Claim(
        tuple(replace(each, event=event, sent_at_ms=limits.now_ms, off_ms=0) for each in claim.readings),
        None if claim.started is None else claim.started._replace(event=event),
        None if claim.ended is None else claim.ended._replace(event=event),
        claim.step,
    )


def _latest_ms(claim: Claim) -> Ms:
    """The latest instant that a claim speaks of."""
    instants = [each.since_ms + each.held_ms for each in claim.readings]
    if claim.started is not None:
        instants.append(claim.started.started_at_ms)
    if claim.ended is not None:
        instants.append(claim.ended.ended_at_ms)
    if claim.step is not None:
        instants.append(claim.step.at_ms)
    return max(instants, default=0)
