"""May this job wait at all? What can never run is refused at once, with a code and a sentence that says what to do (contract §5).

Pure. What is not known yet (tree, capacity) is not judged: the job is kept, neither admitted nor refused.
"""

from collections.abc import Iterable
from typing import NamedTuple

from allmende.admission.model.books import Books
from allmende.admission.model.values import Job, Node, Reason, Terms, Tree
from allmende.admission.rules import closing, policies
from allmende.proto.units import Ms, format_duration


class Verdict(NamedTuple):
    """`refusal` set: refused. Else `accepted`, or kept undecided because of `unknown`."""

    refusal: Reason | None
    accepted: bool
    unknown: tuple[Reason, ...]


TREE_UNKNOWN = Reason("tree_unknown", "no tree of budgets has arrived yet, so nothing can be said about the job's budget")
CAPACITY_UNKNOWN = Reason("capacity_unknown", "no agent has told its nodes yet, so it is not known whether the job fits")


def vet(job: Job, books: Books, now_ms: Ms, terms: Terms) -> Verdict:
    """Judge a job on all that is known."""
    refusal = _by_itself(job)
    unknown: list[Reason] = []
    if refusal is None and books.tree is not None:
        refusal = _by_tree(job, books, books.tree)
    elif refusal is None:
        # Without a budget there is nothing to ask a tree about, but until it is there nobody is admitted (BR-055).
        unknown.append(TREE_UNKNOWN)
    if refusal is None:
        refusal = policies.never(job, books, terms)
    if refusal is None and settled(books, now_ms, terms):
        refusal = _by_capacity(job, books.nodes.values())
    elif refusal is None and not books.nodes:
        unknown.append(CAPACITY_UNKNOWN)
    return Verdict(refusal, refusal is None and not unknown, tuple(unknown))


def settled(books: Books, now_ms: Ms, terms: Terms) -> bool:
    """True when no new node turned up for a while: nodes are told one by one, and the first alone is not the cluster."""
    newest_ms = max((node.first_seen_ms for node in books.nodes.values()), default=None)
    return newest_ms is not None and newest_ms + terms.settle_ms <= now_ms


def warnings(job: Job) -> tuple[Reason, ...]:
    """What the submitter should know."""
    if job.resumable or job.stated_runtime_ms is None or job.slice_ms >= job.stated_runtime_ms:
        return ()
    sentence = (
        f"the job cannot resume and its slice of {format_duration(job.slice_ms)} is shorter than its stated runtime of "
        f"{format_duration(job.stated_runtime_ms)}: once evicted it ends as preempted; ask for a longer slice or save checkpoints"
    )
    return (Reason("slice_shorter_than_runtime", sentence),)


def outgrown(job: Job, books: Books, now_ms: Ms, terms: Terms) -> Reason | None:
    """Why an accepted job can never fit after all, now that the capacity is known."""
    return _by_capacity(job, books.nodes.values()) if settled(books, now_ms, terms) else None


def _by_itself(job: Job) -> Reason | None:
    if job.max_runtime_ms is not None and job.max_runtime_ms < job.slice_ms:
        sentence = (
            f"the maximum runtime of {format_duration(job.max_runtime_ms)} is shorter than the slice of "
            f"{format_duration(job.slice_ms)}; raise the one or lower the other"
        )
        return Reason("max_runtime_below_slice", sentence)
    return None


def _by_tree(job: Job, books: Books, tree: Tree) -> Reason | None:
    if job.budget is None:
        return None
    budget = tree.budgets.get(job.budget)
    if budget is None and (closed := closing.closed(books, job.budget)) is not None:
        return closed
    if budget is None:
        return Reason("unknown_budget", f"there is no budget {job.budget}; `allmende budgets` lists those that exist")
    if job.budget not in tree.leaves:
        return Reason("budget_not_leaf", f"budget {job.budget} has budgets below it and is not charged itself; name one of those")
    if job.user not in budget.members and not job.moved:
        sentence = f"{job.user} is not a member of budget {job.budget}; ask one of its managers, or name a budget of yours"
        return Reason("not_a_member", sentence)
    return None


def _by_capacity(job: Job, nodes: Iterable[Node]) -> Reason | None:
    known = {node.cluster for node in nodes}
    if job.clusters and not known.intersection(job.clusters):
        named, there = ", ".join(job.clusters), ", ".join(sorted(known))
        return Reason("unknown_cluster", f"no cluster is called {named}; there are: {there}")
    here = [node for node in nodes if not job.clusters or node.cluster in job.clusters]
    if job.gpu_model is not None:
        models = sorted({node.gpu_model for node in here if node.gpu_model is not None})
        here = [node for node in here if node.gpu_model == job.gpu_model]
        if not here:
            there = ", ".join(models) or "none with a model"
            return Reason("unknown_gpu_model", f"no node has GPUs of model {job.gpu_model}; there are: {there}")
    most: dict[str, int] = {}
    for node in here:
        # Installed, not healthy: a node under repair is no reason to refuse a job for ever.
        most[node.cluster] = most.get(node.cluster, 0) + node.installed // job.gpus_per_replica
    if max(most.values()) < job.replicas:
        best = max(sorted(most), key=lambda cluster: most[cluster])
        largest = max(node.installed for node in here)
        sentence = (
            f"{job.replicas} x {job.gpus_per_replica} GPUs never fit: cluster {best} has room for {most[best]} replicas of that "
            f"size when empty, and its largest node has {largest} GPUs; ask for fewer or smaller replicas"
        )
        return Reason("never_fits", sentence)
    return None
