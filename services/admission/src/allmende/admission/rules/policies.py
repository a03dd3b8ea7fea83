"""What a cluster's policy lets start, what it holds back and why, and what a change of it does (contract §5 and §8, decision 0022).

Pure. Never touches the order between budgets, and never an attempt that runs.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change, Decreed, Fact, Withdrawn
from allmende.admission.model.lines import Group, Kind, Line, Turn
from allmende.admission.model.values import Attempt, Claim, Decided, Job, KnownPolicy, Reason, Shape, Terms
from allmende.admission.rules.standings import Standings
from allmende.proto.policy import DebugLane, Policy
from allmende.proto.standing import Standing
from allmende.proto.units import Ms, format_duration


def slice_cap_ms(policy: Policy, terms: Terms) -> Ms:
    """The longest slice on the cluster: the policy's, or the service's own where it says nothing."""
    return terms.slice_cap_ms if policy.slice_cap_ms is None else policy.slice_cap_ms


def terms_on(books: Books, cluster: str, terms: Terms) -> Terms:
    """The settings as they hold on one cluster."""
    policy = books.policy(cluster)
    most = terms.reservations_max if policy.reservations is None else policy.reservations
    own = replace(terms, slice_cap_ms=slice_cap_ms(policy, terms), reservations_max=most if evicts(policy) else 0)
    return own if policy.reserve_from_gpus is None else replace(own, gang_ppm=0, gang_gpus=policy.reserve_from_gpus)


def evicts(policy: Policy) -> bool:
    """May anybody be told to leave for somebody else? Without that no instant can be promised."""
    return policy.mode == "enforce" and not policy.paused


def candidates(job: Job, books: Books) -> Sequence[str]:
    """The clusters that a job may use, as far as any are known."""
    return sorted(job.clusters) or books.cluster_names()


# ----------------------------------------------------------------------------------------------------------------- never as it is


def never(job: Job, books: Books, terms: Terms) -> Reason | None:
    """Why no cluster that the job may use will ever start it as it is; None: one may, once there is room."""
    policies = [books.policy(cluster) for cluster in candidates(job, books)] or [Policy()]
    reasons = [_barred_for_ever(job, books, policy, terms) for policy in policies]
    return reasons[0] if all(reasons) else None


def _barred_for_ever(job: Job, books: Books, policy: Policy, terms: Terms) -> Reason | None:
    return _slice(job, policy, terms) or _uncovered(job, books, policy) or _too_large(job, books, policy)


def _slice(job: Job, policy: Policy, terms: Terms) -> Reason | None:
    cap_ms = slice_cap_ms(policy, terms)
    if job.slice_ms > cap_ms:
        cap = format_duration(cap_ms)
        sentence = f"a slice of {format_duration(job.slice_ms)} is above the cap of {cap}; ask for at most {cap}"
        return Reason("slice_above_cap", sentence)
    least_ms = policy.slice_min_ms
    if least_ms is not None and 0 < job.slice_ms < least_ms:
        least = format_duration(least_ms)
        length = format_duration(job.slice_ms)
        sentence = f"a slice of {length} is below the least of {least}; ask for {least}, or for 0: unallocated"
        return Reason("slice_below_min", sentence)
    return None


def _uncovered(job: Job, books: Books, policy: Policy) -> Reason | None:
    if job.slice_ms == 0 or job.may_run_unallocated or policy.uncovered == "unallocated":
        return None
    if job.budget is None:
        sentence = (
            f"a slice of {format_duration(job.slice_ms)} must be charged to a budget and none is named; name one, ask for slice 0, "
            "or allow the job to run unallocated"
        )
        return Reason("no_covering_budget", sentence)
    if books.tree is not None and job.budget in books.tree.leaves and not books.tree.covers(job.budget):
        sentence = (
            f"budget {job.budget} has no share, so it covers no slice; name another, ask for slice 0, or allow the job to run "
            "unallocated"
        )
        return Reason("no_covering_budget", sentence)
    return None


def _too_large(job: Job, books: Books, policy: Policy) -> Reason | None:
    if job.slice_ms == 0 or books.tree is None or not books.tree.covers(job.budget):
        return None
    for budget in books.tree.paths[job.budget or ""]:
        limit = policy.gpus_at_once.get(budget)
        if limit is not None and job.gpus > limit:
            sentence = f"{job.gpus} GPUs are more than the {limit} that budget {budget} may hold at once; ask for fewer"
            return Reason("above_gpu_limit", sentence)
    return None


def over_budget(job: Job, books: Books) -> Reason | None:
    """Why a new job is refused: its leaf is over budget on every cluster that it may use. What is not known is not judged."""
    leaf, clusters = job.budget, candidates(job, books)
    if leaf is None or books.tree is None or job.slice_ms == 0 or not books.tree.covers(leaf) or not clusters:
        return None
    if any(books.policy(cluster).over_budget != "refuse" for cluster in clusters):
        return None
    standings = [_standing(leaf, books, cluster) for cluster in clusters]
    if any(now is None or now.guaranteed for now in standings):
        return None
    now = standings[0]
    assert now is not None
    sentence = (
        f"budget {leaf} is over budget ({now.used} of {now.entitlement} GPU-ms) and {', '.join(clusters)} refuses such jobs; "
        "submit it once its use has fallen below its entitlement, or ask for slice 0"
    )
    return Reason("over_budget", sentence)


def _standing(leaf: str, books: Books, cluster: str) -> Standing | None:
    """One leaf's standing with all grants: as `Standings` has it, without those of everybody else."""
    counted = books.counted.get(cluster, {}).get(leaf)
    if counted is None:
        return None
    standing = Standing(counted.used_gpu_ms, counted.entitlement_gpu_ms)
    if counted.counted_grants >= books.newest_grant[cluster]:
        return standing
    here = (each for each in books.attempts.values() if each.cluster == cluster and each.budget == leaf)
    return standing.after(sum(each.hold_gpu_ms for each in here if each.grant_seq > counted.counted_grants))


# ---------------------------------------------------------------------------------------------------------------------- in a pass


class Limits:
    """A policy's limits on one cluster during one pass: each grant counts at once."""

    def __init__(self, books: Books, cluster: str, terms: Terms) -> None:
        self._books, self._terms = books, terms
        self.policy = books.policy(cluster)
        self.cluster = cluster
        self._paths = books.tree.paths if books.tree is not None else {}
        self._gpus: Counter[str] = Counter()
        self._sessions: Counter[str] = Counter()
        self._debugging: Counter[str] = Counter()
        counts = self.policy.gpus_at_once or self.policy.sessions_per_user is not None or self.policy.debug_lane is not None
        for attempt in books.attempts.values() if counts else ():
            job = books.jobs.get(attempt.job)
            if attempt.cluster == cluster and job is not None and not attempt.is_lost:
                self._count(attempt.budget, job, attempt.slice_ms)
        # Promised: counted as if they had started, because whoever starts before them must leave room for them.
        self._promised: dict[str, tuple[str | None, int]] = {}
        for name in books.reserved[cluster] if counts else ():
            self.promise(books.jobs[name])

    def promise(self, job: Job) -> None:
        """Nodes are gathered for the job: from now on it counts once, whatever becomes of it in this pass."""
        self._count(job.budget, job, job.next_slice_ms)
        self._promised[job.job] = (job.budget, job.gpus)

    def count(self, attempt: Attempt) -> None:
        """A grant of this pass."""
        job = self._books.jobs[attempt.job]
        if job.job not in self._promised:
            self._count(attempt.budget, job, attempt.slice_ms)

    def with_claim(self, claim: Claim) -> bool:
        """May room be asked for? True counts the claimant as if it had started."""
        job = self._books.jobs[claim.job]
        if self.bar(claim.budget, job) is not None:
            return False
        if job.job not in self._promised:
            self._count(claim.budget, job, claim.slice_ms)
        return True

    def _count(self, leaf: str | None, job: Job, slice_ms: Ms) -> None:
        self._sessions[job.user] += job.kind == "session"
        if leaf is not None:
            self._gpus.update(dict.fromkeys(self._paths.get(leaf, ()), job.gpus))
            self._debugging[job.user] += _is_debug(self.policy.debug_lane, job.gpus, slice_ms)

    def full(self, leaf: str, gpus: int, counted: int = 0) -> Reason | None:
        """The limit on GPUs at once that so many more would break, or None; `counted`: so many of them are counted already."""
        if not self.policy.gpus_at_once:
            return None
        for budget in self._paths.get(leaf, ()):
            limit = self.policy.gpus_at_once.get(budget)
            held = self._gpus[budget] - counted
            if limit is not None and held + gpus > limit:
                sentence = (
                    f"budget {budget} holds {held} of the {limit} GPUs that it may hold at once on {self.cluster}, "
                    f"and the job needs {gpus}: some must come back, or an operator must raise the limit"
                )
                return Reason("gpu_limit", sentence)
        return None

    def bar(self, leaf: str | None, job: Job) -> Reason | None:
        """Why the policy does not let a job start now that could be placed; `leaf` None: unallocated."""
        if leaf is None:
            reason = _uncovered(job, self._books, self.policy)
        else:
            # The service's own cap is for what is submitted: whom it once let in, it does not hold back.
            bounded = self.policy.slice_cap_ms is not None or self.policy.slice_min_ms is not None
            reason = _slice(job, self.policy, self._terms) if bounded else None
            reason = reason or self.full(leaf, job.gpus, job.gpus if job.job in self._promised else 0)
        most = self.policy.sessions_per_user
        has = self._sessions[job.user] - (job.job in self._promised)
        if reason is None and most is not None and job.kind == "session" and has >= most:
            sentence = f"{job.user} has {has} of the {most} sessions that one person may have at once on {self.cluster}"
            reason = Reason("session_limit", sentence)
        return reason

    def bars_kind(self, leaf: str, kind: Kind) -> bool:
        """True when nobody of the kind may start, so that none of them needs to be looked at one by one."""
        gpus = kind.shape.replicas * kind.shape.gpus
        return self.full(leaf, gpus, gpus if (leaf, gpus) in self._promised.values() else 0) is not None

    def debugs(self, user: str) -> bool:
        """May one more job of this person go first in its leaf?"""
        lane = self.policy.debug_lane
        return lane is not None and self._debugging[user] < lane.per_user


def _is_debug(lane: DebugLane | None, gpus: int, slice_ms: Ms) -> bool:
    return lane is not None and gpus <= lane.gpus and 0 < slice_ms <= lane.slice_ms


def debug_jobs(books: Books, leaf: str, lane: DebugLane | None) -> list[Turn]:
    """The waiting jobs of a leaf that the debug lane is for, oldest first."""
    if lane is None:
        return []
    return sorted(
        turn
        for kind, groups in books.waiting.get(leaf, {}).items()
        if kind.slice_ms_least <= lane.slice_ms and kind.shape.replicas * kind.shape.gpus <= lane.gpus
        for turns in groups.values()
        for turn in turns
        if _is_debug(lane, kind.shape.replicas * kind.shape.gpus, books.jobs[turn[1]].next_slice_ms)
    )


def uncharged(books: Books, standings: Standings) -> Line:
    """Jobs of over-budget leaves that may start unallocated instead: who may lose his protection, by submission alone."""
    found: Line = {}
    for leaf, kinds in books.waiting.items():
        if leaf is None or not standings.knows(leaf) or standings.now[leaf].guaranteed:
            continue
        for kind, groups in kinds.items():
            for group, turns in groups.items():
                able = [turn for turn in turns if books.jobs[turn[1]].resumable or books.jobs[turn[1]].may_run_unallocated]
                if able:
                    unallocated = Kind(kind.shape, 0)
                    found.setdefault(unallocated, {}).setdefault(Group(unallocated, group.user, 0), []).extend(able)
    for groups in found.values():
        for turns in groups.values():
            turns.sort()
    return found


def ever_fits(books: Books, cluster: str, shape: Shape) -> bool:
    """Would a job of this shape fit the cluster if nothing ran there?"""
    nodes = books.rooms[cluster].nodes.values()
    return sum(node.healthy // shape.gpus for node in nodes if shape.model in (None, node.model)) >= shape.replicas


def would(books: Books, change: Change) -> Change:
    """What mode `observe` keeps of a pass: for each job the first grant and the first claim that would have been made."""
    jobs: dict[str, Job] = {}
    decisions: list[Decided] = []
    for decided in change.decisions:
        job = jobs.get(decided.job) or books.jobs[decided.job]
        if decided.kind in ("granted", "claimed") and decided.kind not in job.would:
            jobs[job.job] = replace(job, would=(*job.would, decided.kind))
            said = "have been " if decided.kind == "granted" else "have "
            decisions.append(replace(decided, kind="would", sentence=f"mode observe: would {said}{decided.sentence}"[:1_000]))
    return Change(jobs=tuple(jobs.values()), decisions=tuple(decisions))


# ----------------------------------------------------------------------------------------------------------------------- changing


def strangers(books: Books, cluster: str, policy: Policy) -> Sequence[str]:
    """The budgets that a new policy begins to limit and that are not in the tree; none before a tree is known.

    A limit that stood before may outlive its budget: it limits nobody, and must not hold up a change of something else.
    """
    if books.tree is None:
        return []
    return sorted(policy.gpus_at_once.keys() - books.policy(cluster).gpus_at_once.keys() - books.tree.budgets.keys())


def promise_void(job: str, why: str, now_ms: Ms) -> Decided:
    """What is said of a reservation that is given up."""
    return Decided(job=job, at_ms=now_ms, kind="queued", sentence=f"the promise to start is void: {why}")


def decreed(books: Books, known: KnownPolicy) -> Change:
    """What follows at once from a new policy. A plan that was made is carried out: its victims have been told."""
    goes_on = evicts(known.policy)
    void = () if goes_on else tuple(claim for claim in books.claims_on(known.cluster) if claim.plan is None)
    facts: Iterable[Fact] = (Decreed(known), *(Withdrawn(claim, "cancelled") for claim in void))
    jobs = {claim.job: replace(books.jobs[claim.job], claim=None) for claim in void}
    decisions = []
    for name in () if goes_on else books.reserved[known.cluster]:
        jobs[name] = replace(jobs.get(name, books.jobs[name]), reserved=None)
        decisions.append(promise_void(name, f"nobody is told to leave on {known.cluster} any more", known.from_ms))
    return Change(
        jobs=tuple(jobs.values()),
        decisions=tuple(decisions),
        claims=tuple(replace(claim, ended="cancelled") for claim in void),
        facts=tuple(facts),
    )
