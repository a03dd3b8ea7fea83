"""Every state of a small world, breadth first, and what must be true of each (decision 0044).

`./dev run python -m tests.model` explores deeper than a build does; a state that breaks a sentence is shown with the way there.
"""

import pickle
import time
from collections import deque
from typing import NamedTuple

import msgspec

from allmende.admission.model.values import Job
from allmende.proto.units import HOUR_MS
from tests.admission.builders import counted, job, lab, node, tree
from tests.model.rows import Admitted, Lab, freeze
from tests.model.world import Machine, Plant, State, World

SETTLED_AFTER = 300
"""Steps without a fault after which nobody may be left waiting for anybody; a world needs some 60."""


class Broken(NamedTuple):
    """A sentence that is not true of a state, and the way there."""

    sentence: str
    way: tuple[str, ...]


class Explored(NamedTuple):
    """What came out. `whole`: no state was left; False: the bound was reached."""

    states: int
    settled: int
    whole: bool
    seconds: float
    reached: tuple[str, ...]
    broken: Broken | None


class Scene(NamedTuple):
    """Jobs that run past their slice, those that want their room, and what stands how in percent."""

    running: tuple[Job, ...]
    waiting: tuple[Job, ...]
    nodes: int = 2


SCENES = {
    "a gang claims the nodes of two": Scene(
        running=(job(1, budget="b"), job(2, budget="b")),
        waiting=(job(3, budget="a", replicas=2),),
    ),
    "two claim, and one more waits": Scene(
        running=(job(1, budget="b", replicas=2),),
        waiting=(job(3, budget="a"), job(4, budget="c")),
    ),
    "unallocated work is in the way": Scene(
        running=(job(1, budget=None, slice_ms=0, may_run_unallocated=True), job(2, budget="b")),
        waiting=(job(3, budget="a", replicas=2), job(4, budget=None, slice_ms=0, may_run_unallocated=True)),
    ),
}


def world_of(scene: Scene, plant: Plant = "none") -> World:
    """The tree a, b, c under org; b has had twice what it is owed, the others nothing."""
    budgets = tree("a", "b", "c")
    books = lab(budgets=budgets)
    assert books.tree is not None
    percents = {"org": 100, "a": 0, "b": 200, "c": 0}
    nodes = tuple(node(number + 1, installed=1, healthy=1) for number in range(scene.nodes))
    texts = tuple(msgspec.json.encode(each).decode() for each in budgets.values())
    standings = tuple(counted(name, percent, counted_grants=0) for name, percent in percents.items())
    return World(Lab(books.tree, nodes, standings, texts), plant)


def begun(world: World, scene: Scene, faults: int, waits: int, delays: int) -> State:
    """The first jobs run, their slices have passed, and the others have come."""
    jobs = {each.job: each for each in scene.running}
    state = settled(world, world.begin(Admitted(jobs=freeze(jobs)), 0, 0))
    assert len(state.running) == len(scene.running), "the scene does not begin as it says"
    late = {each.job: each for each in scene.waiting}
    admitted = state.admitted._replace(jobs=freeze(dict(state.admitted.jobs) | late))
    now_ms = state.now_ms + 2 * HOUR_MS
    return state._replace(
        now_ms=now_ms,
        admitted=admitted,
        faults=faults,
        waits=waits,
        delays=delays,
        wakes=(("admission", now_ms), ("preemptor", now_ms)),
    )


def settled(world: World, state: State) -> State:
    """The state once everything on its way has come, in one order, without a fault; as much time passes as anybody waits for."""
    state = state._replace(faults=0, letters=tuple(sorted((*state.letters, *state.late))), late=())
    for _ in range(SETTLED_AFTER):
        step = next(world.fair(state), None)
        if step is not None:
            state = step.state
        elif any(claim for claim in state.admitted.claims) and (later := world.later(state)) is not None:
            state = later
        else:
            return state
        if state.wrong or untrue(world, state):
            return state
    return state._replace(wrong="everything comes to rest")


def untrue(world: World, state: State) -> str:
    """The first sentence that does not hold in a state, or nothing."""
    if state.wrong:
        return state.wrong
    gpus = {each.node: each.healthy for each in world.lab.nodes}
    granted = dict.fromkeys(gpus, 0)
    truths = dict(state.truths)
    for truth in truths.values():
        for name, count in truth.placement:
            granted[name] += 0 if truth.over else count
    if any(granted[name] > gpus[name] for name in gpus):
        return "no GPU is granted twice"
    jobs, held = dict(state.admitted.jobs), dict.fromkeys(gpus, 0)
    for _name, attempt in state.admitted.attempts:
        for name, count in attempt.held().items():
            held[name] += count
    if any(held[name] > gpus[name] for name in gpus):
        return "no node is over-committed"
    if any(sum(count for _node, count in truth.placement) != jobs[truth.job].gpus for truth in truths.values()):
        return "no gang is granted by half"
    machine: Machine = pickle.loads(state.agent)
    devices = [(place.node, device) for each in machine.running.values() for place in each.places for device in place.devices]
    if len(devices) != len(set(devices)):
        return "no device is used by two"
    if any(truths[name].over for name in state.running):
        return "who is said to be gone runs no more"
    if len({truths[name].job for name in state.running}) != len(state.running):
        return "no job runs twice"
    claims = dict(state.admitted.claims)
    if {(name, claim.job) for name, claim in claims.items()} != {(each.claim, name) for name, each in jobs.items() if each.claim}:
        return "each open claim is that of a waiting job"
    return ""


def forgotten(world: World, state: State) -> str:
    """The first sentence that does not hold once everything has come to rest, or nothing."""
    found = untrue(world, state)
    if found:
        return found
    live = {name for name, truth in state.truths if not truth.over}
    known = {name for name, it in state.heard.attempts if it.grant is not None and not it.ended}
    if state.admitted.claims:
        return "no claim is forgotten"
    if any(each.state == "waiting" for _name, each in state.heard.claims):
        return "each claim has an answer or an end"
    if set(dict(state.admitted.attempts)) != live:
        return "admission knows who holds GPUs"
    if state.heard.promises:
        return "no room is promised to nobody"
    if not known <= live:
        return "the preemptor counts nobody who has gone"
    free = {each.node: each.healthy for each in world.lab.nodes}
    for _name, attempt in state.admitted.attempts:
        for name, count in attempt.held().items():
            free[name] -= count
    for _name, each in state.admitted.jobs:
        rests = max(each.not_before_ms, each.avoid_until_ms) > state.now_ms
        if each.state == "queued" and not rests and each.gpus <= sum(free.values()):
            return "no GPU is idle beside a job that fits"
    return ""


def explore(
    name: str, *, faults: int, waits: int, delays: int, most: int, plant: Plant = "none", settle_each: int = 20
) -> Explored:
    """Explore a scene. `most`: states; each `settle_each`-th state and each last one is also followed to its rest."""
    began_s = time.monotonic()
    scene = SCENES[name]
    world = world_of(scene, plant)
    first = begun(world, scene, faults, waits, delays)
    came: dict[State, tuple[State, str] | None] = {first: None}
    queue, seen, rests = deque([first]), 0, 0

    def done(broken: Broken | None) -> Explored:
        seconds = time.monotonic() - began_s
        return Explored(len(came), rests, not queue and not broken, seconds, tuple(sorted(world.reached)), broken)

    while queue and len(came) < most:
        state = queue.popleft()
        seen += 1
        steps = list(world.steps(state))
        for what, after in steps:
            if after not in came:
                came[after] = (state, what)
                if sentence := untrue(world, after):
                    return done(Broken(sentence, _way(came, after)))
                queue.append(after)
        if not steps or seen % settle_each == 0:
            rests += 1
            if sentence := forgotten(world, settled(world, state)):
                return done(Broken(sentence, _way(came, state)))
    return done(None)


def _way(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    way = []
    while (before := came[state]) is not None:
        state, what = before
        way.append(what)
    return tuple(reversed(way))
