"""One full value of every message, every field set: the values behind proto/samples."""

from allmende.proto.admission import (
    AttemptProtected,
    AttemptStopOrdered,
    Blocker,
    ClaimRaised,
    ClaimWithdrawn,
    JobChanged,
    JobEnded,
    JobGranted,
    JobQueued,
    JobRefused,
    NodeClosed,
    Placed,
)
from allmende.proto.agent import AttemptEnded, AttemptStarted, Counter, FreedGpus, GpuFreed, NodeReported, UsageTick
from allmende.proto.budget import Budget, BudgetChanged, RevisionComplete
from allmende.proto.demand import Asked
from allmende.proto.envelope import Envelope
from allmende.proto.ids import make_id
from allmende.proto.ledger import BudgetUsage, ConfirmedCounter, UsageConfirmed, UsageStanding
from allmende.proto.lost import LostAttempt, NodeDeclaredLost
from allmende.proto.message import Message, MessageRefused, Problem
from allmende.proto.notices import BudgetNotice
from allmende.proto.policy import DebugLane, Policy, PolicyChanged
from allmende.proto.preemptor import (
    ClaimAnswered,
    Compared,
    EvictionOrdered,
    EvictionOverdue,
    HeldGpus,
    NodeCordoned,
    NodeDrained,
    NodeReturned,
    SliceExpired,
    Victim,
)
from allmende.proto.proposals import ProposalDecided, ShareProposed
from allmende.proto.units import HOUR_MS, MINUTE_MS
from allmende.proto.user import JobSubmitted, Payload

T0 = 1_700_000_000_000
SLICE = 8 * HOUR_MS
HOLD = 16 * SLICE


def _id(number: int) -> str:
    return make_id(T0 + number, bytes([number]) * 10)


JOB, ATTEMPT, PLAN, CLAIM, VICTIM, VICTIM_JOB, CAUSE, MESSAGE = (_id(number) for number in range(1, 9))
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PROBLEM = Problem(code="unknown_budget", sentence="there is no budget 'visoin'")
PLACEMENT = (Placed(node="c1-n001", replicas=1), Placed(node="c1-n002", replicas=1))
COUNTER = Counter(
    attempt=ATTEMPT,
    replica=1,
    epoch=2,
    seq=33,
    since_ms=T0,
    held_ms=MINUTE_MS,
    used_gpu_ms=8 * MINUTE_MS,
    busy_gpu_ms=7 * MINUTE_MS,
    memory_active_gpu_ms=6 * MINUTE_MS,
    checkpoint_at_ms=T0 + 30_000,
)

PEOPLE: tuple[Message, ...] = (
    JobSubmitted(
        user="ada",
        job=JOB,
        name="Größe 7, Lauf ✓",
        budget="detection",
        clusters=("c1", "c2"),
        replicas=2,
        gpus_per_replica=8,
        gpu_model="h100",
        slice_ms=SLICE,
        stated_runtime_ms=9 * HOUR_MS,
        max_runtime_ms=24 * HOUR_MS,
        resumable=True,
        priority=-5,
        kind="session",
        may_run_unallocated=True,
        payload=Payload(command=("python", "train.py"), environment={"SEED": "1"}, directory="/home/ada"),
    ),
)
AGENT: tuple[Message, ...] = (
    NodeReported(
        cluster="c1",
        node="c1-n001",
        at_ms=T0,
        seq=4,
        installed_gpus=8,
        healthy_gpus=7,
        gpu_model="h100",
        reason="GPU 3 fell off the bus",
        cordon="GPU 3 fell off the bus twice today",
    ),
    UsageTick(cluster="c1", node="c1-n001", at_ms=T0 + MINUTE_MS, counters=(COUNTER,)),
    AttemptStarted(cluster="c1", attempt=ATTEMPT, job=JOB, started_at_ms=T0),
    AttemptEnded(
        cluster="c1",
        attempt=ATTEMPT,
        job=JOB,
        ended_at_ms=T0 + MINUTE_MS,
        outcome="evicted",
        exit_code=143,
        plan=PLAN,
        checkpoint_at_ms=T0 + 30_000,
        counters=(COUNTER,),
        detail="left 3 s after SIGTERM",
    ),
    GpuFreed(cluster="c1", attempt=ATTEMPT, freed_at_ms=T0 + MINUTE_MS, plan=PLAN, nodes=(FreedGpus(node="c1-n001", gpus=8),)),
)
BUDGET: tuple[Message, ...] = (
    BudgetChanged(
        budget="detection",
        revision=3,
        definition=Budget(
            budget="detection", parent="vision", title="Detection", share_ppm=350_000, managers=("grace",), members=("ada", "kim")
        ),
        jobs_to="segmentation",
    ),
    RevisionComplete(
        revision=3, effective_from_ms=T0, budgets=20, digest="0123456789abcdef" * 4, author="grace", reason="agreed in May"
    ),
    ShareProposed(
        proposal=CLAIM,
        budget="detection",
        parent="vision",
        author="grace",
        share_ppm=410_000,
        share_before_ppm=350_000,
        text="6 % more for two weeks, because the new set is twice as large",
        proposed_at_ms=T0,
        tree_revision=3,
        managers=("mia", "olga"),
        effective_from_ms=T0 + HOUR_MS,
        effective_until_ms=T0 + 2 * HOUR_MS,
        renews=CLAIM,
    ),
    ProposalDecided(
        proposal=CLAIM,
        budget="detection",
        parent="vision",
        author="grace",
        share_ppm=410_000,
        ending="accepted",
        by="mia",
        reason="until the paper is out",
        decided_at_ms=T0 + MINUTE_MS,
        tree_revision=4,
        managers=("mia", "olga"),
    ),
    BudgetNotice(
        notice=MESSAGE,
        kind="entitlement_level",
        budget="detection",
        cluster="c1",
        as_of_ms=T0,
        usage_revision=17,
        tree_revision=3,
        level_percent=80,
        passed_percent=(80,),
        charged_gpu_ms=7 * HOLD,
        held_gpu_ms=HOLD,
        entitlement_gpu_ms=10 * HOLD,
        whole_at_ms=T0 + SLICE,
        managers=("grace",),
        members=("ada", "kim"),
        people_left_out=1,
        sentence="detection has used 80 % of its entitlement (1,024 of 1,280 GPU-hours) on c1",
    ),
)
LEDGER: tuple[Message, ...] = (
    UsageStanding(
        cluster="c1",
        budget="detection",
        as_of_ms=T0,
        usage_revision=1_234,
        tree_revision=3,
        counted_grants=77,
        charged_gpu_ms=123_456_789_012,
        held_gpu_ms=HOLD,
        entitlement_gpu_ms=2**60,
        available_gpus=1_024,
    ),
    BudgetUsage(
        cluster="c1",
        budget="detection",
        as_of_ms=T0,
        attempts=3,
        gpus=24,
        hour_from_ms=T0 - 1,
        hour_gpu_ms=123_456_789,
        day_gpu_ms=2**60,
    ),
    UsageConfirmed(cluster="c1", attempts=(ATTEMPT,), counters=(ConfirmedCounter(attempt=ATTEMPT, replica=1, epoch=2, seq=33),)),
)
ASKED = Asked(
    budget="detection",
    submitted_at_ms=T0,
    clusters=("c1", "c2"),
    replicas=2,
    gpus_per_replica=8,
    gpu_model="h100",
    slice_ms=SLICE,
)
ADMISSION: tuple[Message, ...] = (
    JobQueued(
        user="ada",
        job=JOB,
        budget="detection",
        submitted_at_ms=T0,
        after_attempt=ATTEMPT,
        warnings=(Problem(code="slice_short", sentence="the slice is shorter than the stated runtime"),),
        blockers=(Blocker(code="no_room", sentence="needs 16 GPUs, 4 are free"),),
        asked=ASKED,
    ),
    JobRefused(user="ada", job=JOB, problem=PROBLEM),
    JobGranted(
        cluster="c1",
        job=JOB,
        attempt=ATTEMPT,
        user="ada",
        budget="detection",
        placement=PLACEMENT,
        gpus_per_replica=8,
        slice_ms=SLICE,
        hold_gpu_ms=HOLD,
        priority=-5,
        kind="batch",
        resumable=True,
        max_runtime_ms=24 * HOUR_MS,
        granted_at_ms=T0,
        grant_seq=78,
        fence=2,
        tree_revision=3,
        usage_revision=1_234,
        claim=CLAIM,
        asked=ASKED,
    ),
    AttemptProtected(cluster="c1", attempt=ATTEMPT, job=JOB, budget="detection", started_at_ms=T0, protected_until_ms=T0 + SLICE),
    AttemptStopOrdered(cluster="c1", attempt=ATTEMPT, job=JOB, reason="max_runtime", grace_ms=120_000, fence=2),
    JobEnded(
        user="ada",
        job=JOB,
        budget="detection",
        outcome="finished",
        exit_code=1,
        attempts=2,
        submitted_at_ms=T0,
        first_started_at_ms=T0 + 1,
        ended_at_ms=T0 + MINUTE_MS,
        asked=ASKED,
    ),
    JobChanged(user="ada", job=JOB, held=True, priority=-5, slice_ms=SLICE, author="olga", budget="detection", asked=ASKED),
    ClaimRaised(
        cluster="c1",
        claim=CLAIM,
        job=JOB,
        user="ada",
        budget="detection",
        replicas=2,
        gpus_per_replica=8,
        gpu_model="h100",
        slice_ms=SLICE,
        hold_gpu_ms=HOLD,
        priority=-5,
        raised_at_ms=T0,
        newest_grant_seq=77,
        fence=2,
        tree_revision=3,
        usage_revision=1_234,
        avoid_nodes=("gpu-007",),
        reserved_nodes=("gpu-001", "gpu-002"),
    ),
    NodeClosed(cluster="c1", node="c1-n001", revision=7, newest_grant_seq=42),
    NodeDeclaredLost(
        cluster="c1",
        node="c1-n001",
        by="olga",
        reason="the rack has no power",
        declared_at_ms=T0 + HOUR_MS,
        last_seen_ms=T0 + MINUTE_MS,
        reported_at_ms=T0,
        reported_seq=7,
        installed_gpus=8,
        gpu_model="h100",
        attempts=(LostAttempt(attempt=ATTEMPT, job=JOB, ended_at_ms=T0 + MINUTE_MS),),
    ),
    ClaimWithdrawn(cluster="c1", claim=CLAIM, job=JOB, reason="timed_out"),
    PolicyChanged(
        cluster="c1",
        revision=4,
        from_ms=T0,
        author="olga",
        reason="grant first, evict from May on",
        policy=Policy(
            mode="admit",
            paused=True,
            over_budget="unallocated",
            uncovered="unallocated",
            backfill="unallocated_only",
            slice_min_ms=MINUTE_MS,
            slice_cap_ms=SLICE,
            gpus_at_once={"vision": 64},
            sessions_per_user=2,
            debug_lane=DebugLane(gpus=4, slice_ms=10 * MINUTE_MS, per_user=2),
            reservations=4,
            reserve_from_gpus=64,
        ),
    ),
)
PREEMPTOR: tuple[Message, ...] = (
    ClaimAnswered(
        cluster="c1",
        claim=CLAIM,
        job=JOB,
        outcome="planned",
        code="victims_found",
        sentence="evicts 1 attempt of language, which stands at 1.4",
        plan=PLAN,
        victims=(Victim(attempt=VICTIM, job=VICTIM_JOB, budget="language", gpus=16, lost_gpu_ms=16 * MINUTE_MS),),
        placement=PLACEMENT,
        tree_revision=3,
        usage_revision=1_234,
    ),
    EvictionOrdered(
        cluster="c1",
        attempt=VICTIM,
        job=VICTIM_JOB,
        plan=PLAN,
        claim=CLAIM,
        claimant_job=JOB,
        ordered_at_ms=T0 + 1,
        protected_until_ms=T0,
        grace_ms=120_000,
        rule="over_served_leaf",
        sentence="detection stands at 0.2 after the grant, language at 1.4",
        compared=Compared(
            claimant_budget="detection",
            victim_budget="language",
            claimant_used_gpu_ms=20,
            claimant_entitlement_gpu_ms=100,
            victim_used_gpu_ms=140,
            victim_entitlement_gpu_ms=100,
            margin_ppm=100_000,
        ),
        tree_revision=3,
        usage_revision=1_234,
    ),
    EvictionOverdue(
        cluster="c1",
        attempt=VICTIM,
        job=VICTIM_JOB,
        plan=PLAN,
        due_at_ms=T0 + 180_000,
        silent=True,
        nodes=(HeldGpus(node="c1-n001", gpus=8),),
        sentence="told to leave 3m ago and still there: its node c1-n001 gives no sign of life",
    ),
    SliceExpired(cluster="c1", attempt=ATTEMPT, job=JOB, budget="detection", expired_at_ms=T0 + SLICE),
    NodeCordoned(
        cluster="c1",
        node="c1-n001",
        revision=7,
        by="olga",
        reason="new firmware",
        drain=True,
        from_ms=T0,
        until_ms=T0 + 2 * SLICE,
        deadline_ms=T0 + SLICE,
    ),
    NodeDrained(
        cluster="c1", node="c1-n001", revision=8, by="olga", reason="new firmware", cordoned_at_ms=T0, drained_at_ms=T0 + SLICE
    ),
    NodeReturned(cluster="c1", node="c1-n001", revision=9, by="olga", reason="firmware is new", returned_at_ms=T0 + 2 * SLICE),
)
SHARED: tuple[Message, ...] = (
    MessageRefused(
        service="admission",
        publisher="ada",
        subject=f"user.job_submitted.v1.ada.{JOB}",
        stream="JOBS",
        stream_seq=9,
        message=MESSAGE,
        problem=PROBLEM,
    ),
)

BODIES: tuple[Message, ...] = (*PEOPLE, *AGENT, *BUDGET, *LEDGER, *ADMISSION, *PREEMPTOR, *SHARED)


def enveloped(body: Message) -> Envelope[Message]:
    """The body in an envelope with every field set, sent a minute after the fact."""
    return Envelope(
        id=MESSAGE,
        type=body.TYPE,
        version=body.VERSION,
        occurred_at_ms=T0,
        sent_at_ms=T0 + MINUTE_MS,
        cause=CAUSE,
        trace=TRACE,
        body=body,
    )
