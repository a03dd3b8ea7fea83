"""Which nodes are gathered for a large job, and by when: contract §5 and decision 0015.

A large job never finds a hole: small ones are quicker. So the oldest large job of a leaf that is owed time gets nodes by name. The
instant is the earliest at which enough nodes have room, because every `protected_until` is known and a job that saves at a steady
pace shows when it will save next: nobody leaves inside a slice, and next to nobody between two saves. Until then the nodes serve
unallocated work and slices that end in time.

Pure. Never names a victim: the preemptor tells whoever is left to leave, each after a save where it can.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change, Withdrawn
from allmende.admission.model.values import Attempt, Decided, Job, NodeKey, Reserved, Terms
from allmende.admission.rules.policies import Limits, promise_void
from allmende.admission.rules.rooms import Rooms
from allmende.admission.rules.standings import Standings
from allmende.proto.placement import NodeReplicas
from allmende.proto.standing import Ratio
from allmende.proto.units import PPM_WHOLE, Ms, format_duration

_FAILED = "a node that was gathered failed or was taken out of use"


class Setting(NamedTuple):
    """Where nodes are gathered: the cluster as the pass has left it. `taken`: jobs that the pass has granted."""

    books: Books
    cluster: str
    now_ms: Ms
    terms: Terms
    standings: Standings
    rooms: Rooms
    taken: frozenset[str]
    limits: Limits


def reserve(setting: Setting) -> list[Change]:
    """New reservations: large jobs of leaves that are owed time, one a leaf, those that have waited longest first.

    Whoever does not get enough nodes blocks those behind: a gang of half the cluster would never come up beside smaller ones.
    """
    books, terms = setting.books, setting.terms
    open_ = books.reserved[setting.cluster]
    space = terms.reservations_max - len(open_)
    if space <= 0:
        return []
    busy = {books.jobs[name].budget for name in open_}
    leaves = (leaf for leaf in books.waiting if leaf is not None and leaf not in busy)
    large = ((leaf, job) for leaf in leaves if (job := _oldest_large(setting, leaf)) is not None)
    oldest = [
        (job.submitted_at_ms, job.job, leaf, job)
        for leaf, job in large
        if setting.standings.knows(leaf) and _near(setting, leaf) and _is_due(setting, leaf, job)
    ]
    changes: list[Change] = []
    nodes = _Nodes(setting) if oldest else None
    for _submitted_ms, _name, leaf, job in sorted(oldest, key=lambda each: each[:2])[:space]:
        assert nodes is not None
        if setting.limits.bar(leaf, job) is not None:
            # A limit that leaves share, and that the promises before this one use up.
            continue
        reserved = nodes.gather(job)
        if reserved is None:
            break
        changes.append(_reserved(job, reserved, setting.now_ms))
        setting.standings.hold(leaf, job.next_slice_ms * job.gpus)
        setting.limits.promise(job)
    return changes


def room_from_ms(setting: Setting, job: Job) -> Ms | None:
    """The earliest instant at which enough room for the job is free or interruptible; None: nobody can tell one."""
    if job.reserved is not None and job.reserved.cluster == setting.cluster:
        return job.reserved.order_ms
    found = _Nodes(setting).gather(job)
    return None if found is None else found.order_ms


def _near(setting: Setting, leaf: str) -> bool:
    """May anything be gathered for the leaf, however long it has waited?"""
    return setting.standings.now[leaf].ratio < Ratio(max(PPM_WHOLE, setting.terms.gang_ratio_ppm), PPM_WHOLE)


def _is_due(setting: Setting, leaf: str, job: Job) -> bool:
    """Is it the job's turn: its leaf is owed time, or it has waited long enough while its leaf stands not far above 1?"""
    return setting.standings.now[leaf].guaranteed or job.submitted_at_ms + setting.terms.gang_wait_ms <= setting.now_ms


def mend(setting: Setting) -> list[Change]:
    """Reservations that lost a node get other nodes, and say that a failure moved them; without enough nodes they are void, and
    so is that of a job which a limit of the policy bars by now: nodes that stand by for it would serve nobody.

    A claim that was raised for them is withdrawn: the room that it makes is on the nodes of before.
    """
    books = setting.books
    changes: list[Change] = []
    nodes: _Nodes | None = None
    for name, reserved in list(books.reserved[setting.cluster].items()):
        job = books.jobs[name]
        why = _not_to_be_kept(setting, job)
        if name in setting.taken or (why is None and all(_holds(setting, job, part) for part in reserved.placement)):
            continue
        nodes = nodes or _Nodes(setting)
        nodes.give_back(name)
        again = nodes.gather(job) if why is None else None
        void = books.claims.get(job.claim) if job.claim is not None else None
        if void is not None and void.reserved and void.cluster == setting.cluster:
            # It asks for the nodes of before: while it is open nothing asks for the others.
            job = replace(job, claim=None)
            changes.append(Change(jobs=(job,), claims=(replace(void, ended="cancelled"),), facts=(Withdrawn(void, "cancelled"),)))
        if again is None:
            why = why or f"{_FAILED}, and there are not enough others"
            changes.append(Change(jobs=(replace(job, reserved=None),), decisions=(promise_void(name, why, setting.now_ms),)))
        else:
            moved = again._replace(
                order_ms=max(again.order_ms, reserved.order_ms),
                by_ms=max(again.by_ms, reserved.by_ms),
                made_at_ms=reserved.made_at_ms,
            )
            changes.append(_reserved(job, moved, setting.now_ms, failed=True))
    return changes


def _not_to_be_kept(setting: Setting, job: Job) -> str | None:
    """Why the promise to a job would be none any more, whatever becomes of its nodes."""
    if not setting.terms.reservations_max:
        return "the cluster gathers no nodes any more"
    _may, leaf = setting.books.partition(job)
    barred = None if leaf is None else setting.limits.bar(leaf, job)
    return None if barred is None else barred.sentence


def _holds(setting: Setting, job: Job, part: NodeReplicas) -> bool:
    node = setting.books.nodes.get((setting.cluster, part.node))
    return node is not None and node.healthy >= part.replicas * job.gpus_per_replica and part.node not in setting.rooms.silent


def _oldest_large(setting: Setting, leaf: str) -> Job | None:
    """The leaf's large job that has waited longest, the highest priority first; none that rests, is granted or has a claim."""
    best: tuple[int, Ms, str] | None = None
    large_ppm = max(setting.terms.gang_ppm * setting.books.rooms[setting.cluster].healthy_gpus, setting.terms.gang_gpus * PPM_WHOLE)
    for kind, groups in setting.books.waiting[leaf].items():
        shape = kind.shape
        if shape.replicas * shape.gpus * PPM_WHOLE < large_ppm or shape.claim is not None:
            continue
        if shape.clusters and setting.cluster not in shape.clusters:
            continue
        for group, line in groups.items():
            for submitted_ms, name in line:
                waiting = setting.books.jobs[name]
                if name not in setting.taken and not waiting.idled and _may_start(setting, leaf, waiting):
                    key = (-group.priority, submitted_ms, name)
                    best = key if best is None or key < best else best
                    break
    return None if best is None else setting.books.jobs[best[2]]


def _may_start(setting: Setting, leaf: str, job: Job) -> bool:
    return job.not_before_ms <= setting.now_ms and setting.limits.bar(leaf, job) is None


def _reserved(job: Job, reserved: Reserved, now_ms: Ms, *, failed: bool = False) -> Change:
    nodes = len(reserved.placement)
    why = f"{_FAILED}; " if failed else ""
    sentence = (
        f"{why}{nodes} node{'s are' if nodes > 1 else ' is'} gathered for it on {reserved.cluster}: "
        f"it starts no later than in {format_duration(reserved.by_ms - now_ms)}"
    )
    decided = Decided(job=job.job, at_ms=now_ms, kind="queued", sentence=sentence, numbers={"starts_by_ms": reserved.by_ms})
    return Change(jobs=(replace(job, reserved=reserved),), decisions=(decided,))


class _Nodes:
    """The nodes that may be gathered, each with the instants at which GPUs come free there."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._owner: dict[str, str] = {}
        books, cluster = setting.books, setting.cluster
        for name, reserved in books.reserved[cluster].items():
            for part in reserved.placement:
                self._owner[part.node] = name
        marked = {part.node for claim in books.claims_on(cluster) for part in claim.placement}
        quick = set(books.rooms[cluster].last_by_name(setting.terms.quick_ppm))
        self._nodes = {
            key: node
            for key, node in books.nodes.items()
            if node.cluster == cluster and node.healthy > 0 and node.node not in marked | setting.rooms.silent | quick
        }
        self._all = sum(node.cluster == cluster and node.healthy > 0 for node in books.nodes.values())
        self._most = max((node.healthy for node in self._nodes.values()), default=0)
        self._frees: dict[NodeKey, list[tuple[Ms, int]]] = {}

    def give_back(self, job: str) -> None:
        """The job's nodes may be gathered again."""
        self._owner = {node: owner for node, owner in self._owner.items() if owner != job}

    def gather(self, job: Job) -> Reserved | None:
        """The nodes that have room for the job first, and when; None: too many are gathered already, or it would not fit."""
        setting = self._setting
        size = job.gpus_per_replica
        # The first may be as large as it is; beside others there is a limit.
        room = setting.terms.reserved_ppm * self._all // PPM_WHOLE - len(self._owner) if self._owner else self._all
        if room * self._most // size < job.replicas:
            return None
        steps: list[tuple[Ms, int, str, int]] = []
        for key, node in self._nodes.items():
            if node.node in self._owner or node.node in job.avoid or job.gpu_model not in (None, node.gpu_model):
                continue
            free = 0
            for count, (at_ms, gpus) in enumerate(self._free(key)):
                before, free = max(0, free) // size, free + gpus
                after = max(0, free) // size
                if after > before:
                    # Among nodes that have room at the same time, the one where fewest must leave for it.
                    steps.append((at_ms, count, node.node, after - before))
        steps.sort()
        placed: dict[str, int] = {}
        missing, order_ms = job.replicas, setting.now_ms
        for at_ms, _count, name, replicas in steps:
            if name not in placed and len(placed) >= room:
                continue
            taken = min(missing, replicas)
            placed[name] = placed.get(name, 0) + taken
            missing -= taken
            order_ms = max(order_ms, at_ms)
            if not missing:
                break
        if missing:
            return None
        for name in placed:
            self._owner[name] = job.job
        placement = tuple(NodeReplicas(name, replicas) for name, replicas in sorted(placed.items()))
        return Reserved(setting.cluster, placement, order_ms, order_ms + setting.terms.notice_ms, setting.now_ms)

    def _free(self, key: NodeKey) -> list[tuple[Ms, int]]:
        """(instant, GPUs that come free then), in order. What is free or unallocated counts from now on."""
        found = self._frees.get(key)
        if found is None:
            books, now_ms = self._setting.books, self._setting.now_ms
            held = books.on_node.get(key, {})
            taken, taken_until_ms = self._setting.rooms.taken(key[1])
            allowance_ms = self._setting.terms.start_timeout_ms
            # Negative: GPUs failed below what is held, and whoever leaves first makes up for them.
            idle = self._nodes[key].healthy - taken - sum(held.values())
            comes = [(_leaves_ms(books, books.attempts[name], now_ms, allowance_ms), gpus) for name, gpus in held.items()]
            found = self._frees[key] = sorted([(now_ms, idle), (taken_until_ms + allowance_ms, taken), *comes])
        return found


def _leaves_ms(books: Books, attempt: Attempt, now_ms: Ms, allowance_ms: Ms) -> Ms:
    """When an attempt may go without losing work: its first save after its slice, where its pace is known. Its start may take the
    allowance."""
    if attempt.budget is None or attempt.plan is not None or attempt.stop is not None or attempt.is_lost:
        return now_ms
    ends_ms = attempt.protected_until_ms
    if ends_ms is None:
        return attempt.granted_at_ms + attempt.slice_ms + allowance_ms
    return next_save_ms(books, attempt, max(now_ms, ends_ms))


def next_save_ms(books: Books, attempt: Attempt, from_ms: Ms) -> Ms:
    """The first save at or after an instant, by the pace that the attempt has shown; the instant itself where it has shown none.

    A pace slower than its slice is not waited for: an attempt saves once in each slice, or is not spared.
    """
    saves = books.saves.get(attempt.attempt)
    if saves is None or saves.every_ms is None or saves.every_ms > attempt.slice_ms:
        return from_ms
    return saves.at_ms + max(0, -(-(from_ms - saves.at_ms) // saves.every_ms)) * saves.every_ms


def due(books: Books, cluster: str, now_ms: Ms) -> Iterator[Job]:
    """Jobs whose reservation has come due and that have no claim yet."""
    for name, reserved in books.reserved[cluster].items():
        job = books.jobs[name]
        if reserved.order_ms <= now_ms and job.claim is None and job.claim_after_ms <= now_ms:
            yield job
