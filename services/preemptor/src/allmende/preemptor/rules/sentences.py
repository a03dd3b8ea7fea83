"""The sentences that people read about a plan, with the numbers that were compared. Never decides anything."""

from allmende.preemptor.model import Attempt, Claim, Victim
from allmende.preemptor.rules.displace import CLOSED, IDLE, LOWER_PRIORITY, OVER_SERVED_LEAF, RESERVED, UNALLOCATED, Displaceable
from allmende.proto.order import Comparison
from allmende.proto.standing import Standing
from allmende.proto.units import HOUR_MS, PPM_WHOLE, GpuMs, Ppm


def show_ratio(standing: Standing, decimals: int = 2) -> str:
    """A ratio as people read it, rounded half up: `0.62`; `no entitlement` where there is none."""
    if not standing.entitlement:
        return "no entitlement"
    scale = 10**decimals
    rounded = (2 * standing.used * scale + standing.entitlement) // (2 * standing.entitlement)
    return f"{rounded // scale}.{rounded % scale:0{decimals}d}"


def show_margin(margin_ppm: Ppm) -> str:
    """A margin in parts per million as a decimal: `0.1`."""
    return f"{margin_ppm // PPM_WHOLE}.{margin_ppm % PPM_WHOLE:06d}".rstrip("0").rstrip(".")


def show_gpu_time(amount: GpuMs) -> str:
    """GPU-milliseconds as GPU-hours with one decimal, rounded half up."""
    tenths = (20 * amount + HOUR_MS) // (2 * HOUR_MS)
    return f"{tenths // 10}.{tenths % 10} GPU-h"


def count(number: int, noun: str) -> str:
    """`1 attempt`, `2 attempts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ratios(comparison: Comparison) -> str:
    """Both ratios and the margin, with as many decimals as it takes to see the difference."""
    ours, theirs = comparison.claimant_after, comparison.victim_before
    decimals = next((n for n in range(2, 7) if show_ratio(ours, n) != show_ratio(theirs, n)), 6)
    relation = "below" if comparison.allowed else "not below"
    return (
        f"{comparison.claimant_budget} stands at {show_ratio(ours, decimals)} after the grant"
        f" + {show_margin(comparison.margin_ppm)} margin, {relation} {comparison.victim_budget}'s {show_ratio(theirs, decimals)}"
    )


def why_evicted(candidate: Displaceable, claim: Claim) -> str:
    """Why this attempt may be displaced by this claim."""
    if candidate.rule == UNALLOCATED:
        return f"the attempt is unallocated, and {claim.budget} claims its GPUs for an allocated job"
    if candidate.rule == LOWER_PRIORITY:
        return f"inside {claim.budget}, priority {claim.priority} goes before priority {candidate.attempt.priority} past its slice"
    if candidate.rule == RESERVED:
        return f"the nodes were gathered for job {claim.job} of {claim.budget}, and the attempt is past its slice"
    if candidate.rule == IDLE:
        return f"the attempt is past its slice and its GPUs are idle, and {claim.budget} claims them"
    if candidate.rule == CLOSED:
        return (
            f"budget {candidate.attempt.budget} was closed: past its slice nothing is owed to the attempt, and "
            f"{claim.budget} claims {count(claim.replicas * claim.gpus_per_replica, 'GPU')}"
        )
    assert candidate.compared is not None, "a rule about ratios has ratios"
    where = "" if candidate.rule == OVER_SERVED_LEAF else " (compared where their paths part, both over budget)"
    return ratios(candidate.compared) + where


def why_planned(victims: tuple[Victim, ...], room_is_coming: bool) -> str:
    """What a plan costs."""
    if not victims:
        return "the job fits once the GPUs that are leaving are free" if room_is_coming else "the job fits without an eviction"
    allocated = sum(victim.attempt.gpus for victim in victims if victim.attempt.budget is not None)
    lost = show_gpu_time(sum(victim.lost_gpu_ms for victim in victims))
    return (
        f"{count(len(victims), 'attempt')} must leave: {count(allocated, 'allocated GPU')} displaced, {lost} lost since checkpoints"
    )


def fits_at_most(claim: Claim, replicas: int) -> str:
    """How far the gang would get."""
    return f"{replicas} of {count(claim.replicas, 'replica')} of {count(claim.gpus_per_replica, 'GPU')} would fit"


def spared_attempt(claim: Claim, attempt: Attempt, comparison: Comparison | None) -> str:
    """Why the attempt that comes nearest may not be displaced."""
    if comparison is not None:
        return ratios(comparison)
    if attempt.budget == claim.budget:
        return f"inside {claim.budget}, priority {claim.priority} is not above priority {attempt.priority}"
    return f"the standing of {attempt.budget} is not known"


def too_dear(claim: Claim, lost: GpuMs, waste_ppm: Ppm) -> str:
    """What all victims together would lose, beside what the claimant gains."""
    return (
        f"{show_gpu_time(lost)} of unsaved work would be lost for a slice of {show_gpu_time(claim.hold_gpu_ms)}, more than"
        f" {show_margin(waste_ppm)} of it; the claim waits until more is saved"
    )


def unsaved(attempts: int, waste_ppm: Ppm) -> str:
    """Why attempts that could be displaced are spared for now."""
    return (
        f"{count(attempts, 'attempt')} there would lose more unsaved work than {show_margin(waste_ppm)} of the claimant's slice and"
        " may go once they have saved"
    )
