"""Builders of admission's values: a small lab with one cluster, and only what a test cares about is named."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change
from allmende.admission.model.values import Attempt, Claim, Counted, Job, Node, Terms
from allmende.admission.rules import trees
from allmende.admission.rules.life import Order
from allmende.admission.rules.passing import Passed, decide
from allmende.proto.budget import Budget
from allmende.proto.ids import make_id
from allmende.proto.placement import NodeReplicas
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS

NOW = 1_700_000_000_000
CLUSTER = "c1"
# What a leaf is owed in these tests unless it says otherwise: a large round number.
OWED = 1_000 * HOUR_MS

TERMS = Terms(
    slice_cap_ms=8 * HOUR_MS,
    silent_after_ms=30 * SECOND_MS,
    start_timeout_ms=30 * SECOND_MS,
    answer_wait_ms=SECOND_MS,
    claim_timeout_ms=150 * SECOND_MS,
    claims_max=64,
    claim_backoff_ms=SECOND_MS,
    claim_backoff_max_ms=30 * SECOND_MS,
    requeue_backoff_ms=MINUTE_MS,
    requeue_backoff_max_ms=30 * MINUTE_MS,
    avoid_ms=5 * MINUTE_MS,
    start_failures_max=3,
    settle_ms=5 * SECOND_MS,
    stop_grace_ms=120 * SECOND_MS,
    margin_ppm=100_000,
)


def an_id(number: int) -> str:
    """An id that sorts by its number."""
    return make_id(NOW + number, number.to_bytes(10, "big"))


def counting(start: int = 1_000_000) -> Callable[[], str]:
    """A source of ids, the same in every run."""
    number = start

    def new() -> str:
        nonlocal number
        number += 1
        return an_id(number)

    return new


def job(number: int, **fields: object) -> Job:
    """An accepted, waiting job of 1 GPU with a slice of 1 h, user `u1`, budget `a`."""
    values: dict[str, object] = {
        "job": an_id(number),
        "user": "u1",
        "name": "",
        "budget": "a",
        "clusters": (),
        "replicas": 1,
        "gpus_per_replica": 1,
        "gpu_model": None,
        "slice_ms": HOUR_MS,
        "stated_runtime_ms": None,
        "max_runtime_ms": None,
        "resumable": True,
        "priority": 0,
        "kind": "batch",
        "may_run_unallocated": False,
        "submitted_at_ms": NOW - HOUR_MS + number,
        "accepted": True,
    } | fields
    values.setdefault("next_slice_ms", values["slice_ms"])
    return Job(**values)  # type: ignore[arg-type]


def node(number: int, **fields: object) -> Node:
    """A healthy node of 8 GPUs that gave a sign of life just now."""
    values: dict[str, object] = {
        "cluster": CLUSTER,
        "node": f"n{number:03d}",
        "gpu_model": None,
        "installed": 8,
        "healthy": 8,
        "at_ms": NOW,
        "seq": 1,
        "first_seen_ms": NOW - HOUR_MS,
        "last_seen_ms": NOW,
    } | fields
    return Node(**values)  # type: ignore[arg-type]


def attempt(number: int, of: Job, where: Mapping[str, int], **fields: object) -> Attempt:
    """A running attempt of a job, started an hour ago, so past a slice of up to an hour. `where`: replicas by node."""
    slice_ms = 0 if of.slice_ms == 0 else of.slice_ms
    values: dict[str, object] = {
        "attempt": an_id(500_000 + number),
        "job": of.job,
        "user": of.user,
        "cluster": CLUSTER,
        "budget": of.budget if slice_ms else None,
        "placement": tuple(NodeReplicas(name, replicas) for name, replicas in where.items()),
        "gpus_per_replica": of.gpus_per_replica,
        "slice_ms": slice_ms,
        "priority": of.priority,
        "grant_seq": number,
        "granted_at_ms": NOW - HOUR_MS,
        "start_by_ms": NOW - HOUR_MS + 30 * SECOND_MS,
        "max_runtime_ms": of.max_runtime_ms,
        "state": "running",
        "started_at_ms": NOW - HOUR_MS,
        "protected_until_ms": NOW - HOUR_MS + slice_ms,
    } | fields
    return Attempt(**values)  # type: ignore[arg-type]


def order(plan: str, **fields: object) -> Order:
    """An order to leave for job 1."""
    values = {
        "plan": plan,
        "claimant_job": an_id(1),
        "at_ms": NOW,
        "grace_ms": 120 * SECOND_MS,
        "sentence": "a stands at 0.5 after the grant + 0.1 margin, below b's 0.9",
        "numbers": {"margin_ppm": 100_000},
        "tree_revision": 1,
        "usage_revision": 7,
    } | fields
    return Order(**values)  # type: ignore[arg-type]


def claim(number: int, of: Job, **fields: object) -> Claim:
    """An unanswered claim of a job, raised just now."""
    values: dict[str, object] = {
        "claim": an_id(700_000 + number),
        "cluster": CLUSTER,
        "job": of.job,
        "user": of.user,
        "budget": of.budget,
        "replicas": of.replicas,
        "gpus_per_replica": of.gpus_per_replica,
        "gpu_model": of.gpu_model,
        "slice_ms": of.next_slice_ms,
        "priority": of.priority,
        "raised_at_ms": NOW,
        "answer_by_ms": NOW + SECOND_MS,
        "deadline_ms": NOW + 150 * SECOND_MS,
        "newest_grant_seq": 0,
        "tree_revision": 1,
        "usage_revision": 1,
        "stirrings": 0,
    } | fields
    return Claim(**values)  # type: ignore[arg-type]


def tree(
    *leaves: str, programs: Mapping[str, Sequence[str]] | None = None, members: Sequence[str] = ("u1", "u2", "u3")
) -> dict[str, Budget]:
    """A tree `org` > leaves, or `org` > program > leaves."""
    budgets = {"org": Budget(budget="org")}
    for leaf in leaves:
        budgets[leaf] = Budget(budget=leaf, parent="org", share_ppm=100_000, members=tuple(members))
    for program, below in (programs or {}).items():
        budgets[program] = Budget(budget=program, parent="org", share_ppm=200_000)
        for leaf in below:
            budgets[leaf] = Budget(budget=leaf, parent=program, share_ppm=100_000, members=tuple(members))
    return budgets


def counted(budget: str, percent: int, **fields: object) -> Counted:
    """A standing at so many percent of OWED."""
    values: dict[str, object] = {
        "cluster": CLUSTER,
        "budget": budget,
        "usage_revision": 1,
        "tree_revision": 1,
        "counted_grants": 10**9,
        "used_gpu_ms": OWED * percent // 100,
        "entitlement_gpu_ms": OWED,
    } | fields
    return Counted(**values)  # type: ignore[arg-type]


def lab(
    jobs: Iterable[Job] = (),
    nodes: Iterable[Node] = (),
    standings: Mapping[str, int] | None = None,
    budgets: Mapping[str, Budget] | None = None,
    attempts: Iterable[Attempt] = (),
    claims: Iterable[Claim] = (),
) -> Books:
    """Books of a lab: a tree of leaves a, b, c under org; `standings` in percent, 0 where not named."""
    tree_ = dict(budgets) if budgets is not None else tree("a", "b", "c")
    books = Books()
    books.load_tree((), None, trees.made(1, tree_))
    percents = dict.fromkeys(tree_, 0) | dict(standings or {})
    books.load(jobs, attempts, claims, nodes, (), [counted(name, percent) for name, percent in percents.items()])
    return books


def run_pass(books: Books, now_ms: int = NOW, terms: Terms = TERMS, new_id: Callable[[], str] | None = None) -> Passed:
    """One pass over the cluster, without taking it over."""
    return decide(books, CLUSTER, now_ms, terms, new_id or counting())


def granted_jobs(change: Change) -> list[str]:
    """The jobs granted, in order."""
    return [each.job for each in change.attempts]


def free_gpus(books: Books, key: tuple[str, str]) -> int:
    """GPUs of a node that nobody holds."""
    return books.nodes[key].healthy - sum(books.on_node.get(key, {}).values())


def waiting(of: Job, **fields: object) -> Job:
    """The same job with other fields."""
    return replace(of, **fields)
