"""May a session's protection be extended, and until when (contract §6, "Sessions may renew"; decision 0041).

Pure, and by values only: admission and the simulator call the same function. Never shortens a protection, never looks at who waits,
and never lets a leaf past its entitlement. Times and lengths are milliseconds on the lab's clock; amounts are GPU-ms.
"""

from typing import Literal, NamedTuple, TypeAlias

from allmende.admission.model.values import Reason
from allmende.proto.standing import Standing
from allmende.proto.units import HOUR_MS, MINUTE_MS, GpuMs, Ms, format_duration, format_instant

Bound: TypeAlias = int | Literal["unlimited"]
"""0: none at all. What a policy leaves unset is resolved by the caller, so unset never gets here."""

# A working day and the evening after it: three slices of the default cap.
DEFAULT_PROTECTED_MS: Ms = 24 * HOUR_MS
# Before the first warning (10 minutes), so that nobody is warned of an end that is about to move.
AUTOMATIC_LEAD_MS: Ms = 15 * MINUTE_MS
# What was refused may be possible a little later: a leaf's ratio falls as its window rolls on.
AUTOMATIC_RETRY_MS: Ms = MINUTE_MS
# What no length was asked for may be shorter than a slice, but no crumb that is over before anybody has saved anything.
LEAST_MS: Ms = MINUTE_MS


class Limits(NamedTuple):
    """A cluster's limits on the renewals of one attempt: the policy's where it says something, else the service's own."""

    slice_cap_ms: Ms
    """Nobody is ever protected for longer than this from now on, by a slice or by renewals."""
    renewals: Bound = "unlimited"
    """How often."""
    protected_ms: Bound = DEFAULT_PROTECTED_MS
    """How long in all, from the attempt's start to the last end of its protection."""


class Session(NamedTuple):
    """What a renewal needs to know of an attempt."""

    kind: Literal["batch", "session"]
    state: Literal["starting", "running", "ending", "ended"]
    """`ending`: told to end, by its owner or by a limit of its own."""
    budget: str | None
    """None: unallocated."""
    gpus: int
    """Of the whole gang."""
    slice_ms: Ms
    started_at_ms: Ms
    protected_until_ms: Ms
    max_runtime_ms: Ms | None = None
    renewals: int = 0
    """How often it was renewed already."""
    plan: str | None = None
    """The plan that evicts it, or that names it as a victim; carried out without deciding again."""


class Around(NamedTuple):
    """What stands beside the attempt, all of one moment."""

    standing: Standing | None
    """Its leaf's, with every hold counted, this attempt's too. None: not known, which is not zero."""
    claims_until_ms: Ms | None = None
    """The latest instant at which a claim on the cluster that is not answered yet may still be: the preemptor answers by the
    protections that it knows, and this renewal it may not know."""
    node_closes_ms: Ms | None = None
    """The earliest cordon on its nodes, in force or to come."""
    nodes_reserved_ms: Ms | None = None
    """The earliest instant at which a reservation counts on one of its nodes."""


class Renewal(NamedTuple):
    """Protection is extended to `protected_until_ms`; the leaf holds `hold_gpu_ms` more from this moment on."""

    protected_until_ms: Ms
    length_ms: Ms
    hold_gpu_ms: GpuMs
    renewals: int
    """How many there have been, this one included."""


def judge(session: Session, asked_ms: Ms | None, around: Around, limits: Limits, now_ms: Ms) -> Renewal | Reason:
    """One renewal by `asked_ms` (above 0), or why there is none: then nothing changes.

    It begins where the protection ends, or now where that has passed. `asked_ms` None: another slice, or as much of it as the
    limits allow; the leaf's standing takes it whole or not at all. Reasons, the first that holds: `not_a_session`, `not_running`,
    `nothing_to_renew`, `leaving`, `claim_answering`, `renewals_used_up`, the bounds of `_latest`, `standing_unknown`,
    `renewal_over_budget`.
    """
    barred = _barred(session, around) or _used_up(session, limits)
    if barred is not None:
        return barred
    from_ms = max(session.protected_until_ms, now_ms)
    latest_ms, reason = _latest(session, around, limits, now_ms, from_ms)
    wanted_ms = session.slice_ms if asked_ms is None else asked_ms
    least_ms = min(wanted_ms, LEAST_MS) if asked_ms is None else wanted_ms
    length_ms = min(wanted_ms, max(0, latest_ms - from_ms)) if asked_ms is None else wanted_ms
    if from_ms + least_ms > latest_ms:
        return reason
    hold = length_ms * session.gpus
    over = _over_budget(session, around.standing, hold)
    return over or Renewal(from_ms + length_ms, length_ms, hold, session.renewals + 1)


def automatic_at_ms(session: Session) -> Ms:
    """When an automatic renewal is tried first: before the first warning; a short slice is used by half first."""
    return session.protected_until_ms - min(AUTOMATIC_LEAD_MS, session.slice_ms // 2)


def retry_at_ms(session: Session, refused_at_ms: Ms) -> Ms | None:
    """When an automatic renewal that was refused is tried again; None: the protection has ended first, and it is tried no more."""
    at_ms = refused_at_ms + AUTOMATIC_RETRY_MS
    return at_ms if at_ms < session.protected_until_ms else None


def renewals_left(session: Session, limits: Limits) -> Bound:
    """How many more the cluster's limit on their number allows."""
    return "unlimited" if limits.renewals == "unlimited" else max(0, limits.renewals - session.renewals)


def _barred(session: Session, around: Around) -> Reason | None:
    if session.kind != "session":
        sentence = "only a session may be renewed; a batch job saves its work and comes back with a fresh slice"
        return Reason("not_a_session", sentence)
    if session.state != "running":
        return Reason("not_running", f"the attempt is {session.state}; only one that runs can be renewed")
    if session.budget is None or session.slice_ms == 0:
        return Reason("nothing_to_renew", "the attempt runs unallocated: it has no protection that could be extended")
    if session.plan is not None:
        sentence = f"the attempt was told to leave, or is about to be, by plan {session.plan}; a plan is carried out as it was made"
        return Reason("leaving", sentence)
    if around.claims_until_ms is not None and session.protected_until_ms <= around.claims_until_ms:
        sentence = (
            "room is being sought among whoever may be interrupted, and this attempt may be one of them; ask again in a moment"
        )
        return Reason("claim_answering", sentence)
    return None


def _used_up(session: Session, limits: Limits) -> Reason | None:
    if limits.renewals == "unlimited" or session.renewals < limits.renewals:
        return None
    if limits.renewals == 0:
        return Reason("renewals_used_up", "the cluster's policy allows no renewals")
    times = "once" if limits.renewals == 1 else f"{limits.renewals} times"
    sentence = f"a session may be renewed {times} on this cluster, and this one has been ({session.renewals})"
    return Reason("renewals_used_up", sentence)


def _latest(session: Session, around: Around, limits: Limits, now_ms: Ms, from_ms: Ms) -> tuple[Ms, Reason]:
    """Until when it may be protected at most, and the bound that says so: `past_slice_cap`, `protected_enough`, `past_max_runtime`,
    `node_closes`, `nodes_reserved`. Of equals the first."""
    bounds: list[tuple[Ms, str, str]] = []
    cap = format_duration(limits.slice_cap_ms)
    bounds.append((now_ms + limits.slice_cap_ms, "past_slice_cap", f"nobody is protected for longer than {cap} from now on"))
    if limits.protected_ms != "unlimited":
        most = format_duration(limits.protected_ms)
        sentence = f"a session is protected for at most {most} in all on this cluster"
        bounds.append((session.started_at_ms + limits.protected_ms, "protected_enough", sentence))
    if session.max_runtime_ms is not None:
        sentence = f"its maximum runtime of {format_duration(session.max_runtime_ms)} ends it before"
        bounds.append((session.started_at_ms + session.max_runtime_ms, "past_max_runtime", sentence))
    if around.node_closes_ms is not None:
        bounds.append((around.node_closes_ms, "node_closes", "a node that it runs on is closed for maintenance"))
    if around.nodes_reserved_ms is not None:
        # Contract §5: a promised start never moves later because of something that was given after it.
        sentence = "a job that was promised a start counts on its nodes"
        bounds.append((around.nodes_reserved_ms, "nodes_reserved", sentence))
    latest_ms, code, why = min(bounds, key=lambda bound: bound[0])
    left_ms = latest_ms - from_ms
    rest = f"ask for at most {format_duration(left_ms)}" if left_ms >= LEAST_MS else "no more can be added now"
    return latest_ms, Reason(code, f"{why}: until {format_instant(latest_ms)}; {rest}")


def _over_budget(session: Session, standing: Standing | None, hold: GpuMs) -> Reason | None:
    if standing is None:
        return Reason("standing_unknown", f"the standing of budget {session.budget} is not known yet; ask again in a moment")
    after = standing.after(hold)
    # A hold is more than nothing, so no entitlement never covers it: there the ratio is infinite.
    if after.used <= after.entitlement:
        return None
    sentence = (
        f"budget {session.budget} would stand at {after.used} of {after.entitlement} GPU-ms with {hold} more held; a session is "
        f"renewed while that is at most 1. It runs on, but may be interrupted from {format_instant(session.protected_until_ms)}"
    )
    return Reason("renewal_over_budget", sentence)
