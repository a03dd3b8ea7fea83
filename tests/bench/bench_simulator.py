"""What a simulated job event costs under `allmende`: on ai2-lab, on Microsoft's history, and with queues of 1x, 4x and 16x.

Each figure has a ceiling from the same run: `fifo` on the same input, and `engine`, the same events with a policy that repeats what
was decided and thinks nothing. Bounds are issue 3's and stand beside the figures as `NAME_max`. Never judges: a busy machine is
slower.
"""

import json
import math
import resource
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

from allmende.proto.units import DAY_MS, PPM_WHOLE, Ms, Ppm
from allmende.simulator import scenarios
from allmende.simulator.model import Cluster, History, Job, RunEnd, StandingSample, TreeChange, Window
from allmende.simulator.policies.offered import POLICIES
from allmende.simulator.ports import Action, Policy, Scenario
from allmende.simulator.scenarios.setting import LOAD_PPM
from allmende.simulator.world.engine import World

Figures = dict[str, float | str]

SEED = 1
EVENT_DAYS = 7
QUEUES = (1, 4, 16)
# The first day fills the cluster and settles the standings; the second is measured.
QUEUE_WARM_UP_MS: Ms = DAY_MS
QUEUE_END_MS: Ms = 2 * DAY_MS
TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "philly_vc"
PHILLY_GPUS = 500
# Issue 3 allows 120 s. What has not ended after four times that is stopped, and how far it came is the figure.
PHILLY_LIMIT_S = 480


def bench() -> Figures:
    """Processor time in milliseconds an event, seconds and MiB of the whole history, and how the cost grows with the queue."""
    return _events() | _queues() | _philly()


# -------------------------------------------------------------------------------------------------------------------------- events


class Recorder:
    """A policy that passes everything on to another and remembers what it said, call by call."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.said: deque[tuple[Ms, Sequence[Action]]] = deque()
        self.protected: dict[str, Ms] = {}
        self._policy = policy
        # Whatever is only noted goes straight to the other: no call is paid twice.
        self.tree, self.node, self.submitted = policy.tree, policy.node, policy.submitted
        self.saves, self.ended, self.due_ms = policy.saves, policy.ended, policy.due_ms
        self.standings, self.waiting = policy.standings, policy.waiting

    def started(self, attempt: str, now_ms: Ms) -> Ms:
        self.protected[attempt] = until_ms = self._policy.started(attempt, now_ms)
        return until_ms

    def decide(self, now_ms: Ms) -> Sequence[Action]:
        actions = self._policy.decide(now_ms)
        self.said.append((now_ms, actions))
        return actions


class Replay:
    """A policy that decides nothing: it says again what was recorded, at the same calls."""

    def __init__(self, recorded: Recorder) -> None:
        self.name = recorded.name
        self._said, self._protected = recorded.said, recorded.protected

    def tree(self, change: TreeChange) -> None:
        pass

    def node(self, node: str, gpus: int, healthy: int, gpu_model: str | None, now_ms: Ms) -> None:
        pass

    def submitted(self, job: Job, now_ms: Ms) -> None:
        pass

    def started(self, attempt: str, now_ms: Ms) -> Ms:
        return self._protected[attempt]

    def saves(self, attempt: str, every_ms: Ms, now_ms: Ms) -> None:
        pass

    def ended(self, attempt: str, end: RunEnd, now_ms: Ms, saved_at_ms: Ms | None) -> None:
        pass

    def due_ms(self) -> Ms | None:
        return self._said[0][0] if self._said else None

    def decide(self, now_ms: Ms) -> Sequence[Action]:
        at_ms, actions = self._said.popleft()
        assert at_ms == now_ms, "the world asks at the same instants"
        return actions

    def standings(self, now_ms: Ms) -> StandingSample:
        return StandingSample(now_ms, {})

    def waiting(self) -> tuple[int, int]:
        return 0, 0


def _events() -> Figures:
    recorder = Recorder(_policy("allmende", _lab().cluster))
    ours, ours_s = _timed(_lab(), recorder)
    replayed, engine_s = _timed(_lab(), Replay(recorder))
    assert replayed.events == ours.events, "the same events, or the ceiling is none"
    fifo, fifo_s = _timed(_lab(), _policy("fifo", _lab().cluster))
    ours_ms, engine_ms, fifo_ms = ours_s * 1e3 / ours.events, engine_s * 1e3 / ours.events, fifo_s * 1e3 / fifo.events
    return {
        "ai2_lab_events": ours.events,
        "ai2_lab_looks_per_event": round(ours.looks / ours.events, 2),
        "ai2_lab_ms_per_event": round(ours_ms, 3),
        "ai2_lab_ms_per_event_max": 1,
        "ai2_lab_engine_ms_per_event": round(engine_ms, 3),
        "ai2_lab_fifo_ms_per_event": round(fifo_ms, 3),
        "ai2_lab_times_engine": round(ours_ms / engine_ms, 1),
        "ai2_lab_times_fifo": round(ours_ms / fifo_ms, 1),
    }


def _lab() -> Scenario:
    return scenarios.make("ai2-lab", seed=SEED, days=EVENT_DAYS, load_ppm=None)


def _policy(name: str, cluster: Cluster) -> Policy:
    offer = POLICIES[name]
    return offer.make(offer.settings(), cluster)


def _timed(scenario: Scenario, policy: Policy) -> tuple[History, float]:
    world = World(scenario, policy, SEED)
    begun_s = process_time()
    history = world.run()
    return history, process_time() - begun_s


# -------------------------------------------------------------------------------------------------------------------------- queues


class Cost(NamedTuple):
    """What an event cost with a queue of so many jobs, on average."""

    waiting_jobs: float
    ms_per_event: float


def _queues() -> Figures:
    """Growth against that of the logarithm of the queue's length, which is what issue 3 allows."""
    figures: Figures = {}
    for name in ("allmende", "fifo"):
        costs = {times: _with_queue(name, times) for times in QUEUES}
        one = costs[1]
        for times, cost in costs.items():
            figures[f"queue_{times}x_{name}_jobs"] = round(cost.waiting_jobs)
            figures[f"queue_{times}x_{name}_ms_per_event"] = round(cost.ms_per_event, 3)
            if times > 1:
                figures[f"queue_{times}x_{name}_growth"] = round(_growth(cost, one), 2)
                figures[f"queue_{times}x_{name}_growth_max"] = round(_log(cost, one), 2)
        figures[f"queue_{name}_exponent"] = round(_exponent(list(costs.values())), 2)
        allowed = [
            cost.ms_per_event / one.ms_per_event <= math.log(cost.waiting_jobs) / math.log(one.waiting_jobs)
            for cost in costs.values()
        ]
        figures[f"queue_{name}_no_worse_than_log"] = int(all(allowed))
    return figures


def _growth(cost: Cost, one: Cost) -> float:
    return cost.ms_per_event / one.ms_per_event


def _log(cost: Cost, one: Cost) -> float:
    return math.log(cost.waiting_jobs) / math.log(one.waiting_jobs)


def _with_queue(name: str, times: int) -> Cost:
    # What exceeds the capacity waits: that part is multiplied.
    load_ppm: Ppm = PPM_WHOLE + times * (LOAD_PPM - PPM_WHOLE)
    scenario = scenarios.make("ai2-lab", seed=SEED, days=EVENT_DAYS, load_ppm=load_ppm)
    begin_ms = scenario.window.begin_ms
    from_ms = begin_ms + QUEUE_WARM_UP_MS
    scenario = scenario._replace(window=Window(begin_ms, from_ms, begin_ms + QUEUE_END_MS))
    world = World(scenario, _policy(name, scenario.cluster), SEED)
    marks: list[tuple[float, int]] = []

    def note(at_ms: Ms) -> None:
        if not marks and at_ms >= from_ms:
            marks.append((process_time(), world.history.events))

    history = world.run(note)
    (since_s, before), until_s = marks[0], process_time()
    waiting = [room.waiting_jobs for room in history.rooms if room.at_ms >= from_ms]
    return Cost(sum(waiting) / len(waiting), (until_s - since_s) * 1e3 / (history.events - before))


def _exponent(costs: Sequence[Cost]) -> float:
    """p of the power law `cost ~ jobs^p` that lies nearest (least squares of the logarithms): 0 constant, 1 linear."""
    xs, ys = [math.log(cost.waiting_jobs) for cost in costs], [math.log(cost.ms_per_event) for cost in costs]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)


# -------------------------------------------------------------------------------------------------------------------------- philly


def _philly() -> Figures:
    if not TRACE.exists():
        return {"philly": "skipped: there is no ../shared/traces/philly_vc beside the repository"}
    figures: Figures = {"philly_allmende_s_max": 120, "philly_allmende_peak_mib_max": 1_024}
    for name in ("fifo", "allmende"):
        before_s = _children_s()
        said = _replayed(name)
        came = said["measured_to_ms"] - said["window_from_ms"]
        figures[f"philly_{name}_part_done"] = round(came / (said["window_to_ms"] - said["window_from_ms"]), 3)
        figures[f"philly_{name}_jobs"] = said["jobs_submitted"]
        figures[f"philly_{name}_s"] = round(said["runtime_s"], 1)
        figures[f"philly_{name}_cpu_s"] = round(_children_s() - before_s, 1)
        figures[f"philly_{name}_peak_mib"] = round(said["peak_mib"])
        figures[f"philly_{name}_ms_per_event"] = round(said["ms_per_event"], 3)
    ours, fifo = figures["philly_allmende_ms_per_event"], figures["philly_fifo_ms_per_event"]
    return figures | {"philly_times_fifo": round(float(ours) / float(fifo), 1)}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _replayed(policy: str) -> dict[str, Any]:
    """The command itself in a process of its own, whose memory is nobody else's. Stopped at its limit it tells how far it came."""
    command = [sys.executable, "-m", "allmende.simulator", "--philly", str(TRACE), "--gpus", str(PHILLY_GPUS)]
    process = subprocess.Popen([*command, "--policy", policy, "--json"], stdout=subprocess.PIPE)
    try:
        out, _err = process.communicate(timeout=PHILLY_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        out, _err = process.communicate(timeout=60)
    finally:
        process.kill()
    said: dict[str, Any] = json.loads(out)
    return said


if __name__ == "__main__":
    print(json.dumps(bench(), indent=2))
