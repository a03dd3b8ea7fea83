"""How one attempt of a synthetic job lives: when it ends by itself, what it has saved, how fast it leaves. Pure.

Decides nothing about the cluster: nodes, signals and their instants come in as arguments.
"""

from typing import Literal, NamedTuple

from allmende.agent.synthetic.chance import lognormal_ms, uniform
from allmende.agent.synthetic.command import Command
from allmende.proto.units import PPM_WHOLE, Ms, Ppm

# As the order for this cluster has it: most programs leave within seconds, a few write a large checkpoint, some never listen.
LEAVING_MEDIAN_MS: Ms = 3_000
LEAVING_P95_MS: Ms = 20_000
IGNORING_PPM: Ppm = 20_000

CRASHED = 1
TERMINATED = 143
KILLED = 137


class Progress(NamedTuple):
    """What a job has saved: productive time, and when it saved it (None: never)."""

    saved_ms: Ms = 0
    saved_at_ms: Ms | None = None


class Life(NamedTuple):
    """One attempt, if nobody disturbs it. It works from `productive_from_ms` on and continues at `resumed_at_ms` of its runtime."""

    started_at_ms: Ms
    productive_from_ms: Ms
    resumed: Progress
    ends_at_ms: Ms
    how: Literal["finished", "failed"]
    exit_code: int


def life(command: Command, resumed: Progress, started_at_ms: Ms) -> Life:
    """An attempt that starts now and continues at what was saved."""
    productive_from_ms = started_at_ms + command.startup_ms
    crashes = command.crash_after_ms is not None and command.crash_after_ms < command.runtime_ms
    goal_ms = command.crash_after_ms if crashes and command.crash_after_ms is not None else command.runtime_ms
    return Life(
        started_at_ms=started_at_ms,
        productive_from_ms=productive_from_ms,
        resumed=resumed,
        ends_at_ms=productive_from_ms + max(0, goal_ms - resumed.saved_ms),
        how="failed" if crashes else "finished",
        exit_code=CRASHED if crashes else 0,
    )


def progress(course: Life, at_ms: Ms) -> Ms:
    """Productive time of the job at an instant of the attempt, saved or not."""
    until_ms = min(at_ms, course.ends_at_ms)
    return course.resumed.saved_ms + max(0, until_ms - course.productive_from_ms)


def saved(command: Command, course: Life, at_ms: Ms) -> Progress:
    """What the job has saved by an instant of the attempt: every `checkpoint_ms` of productive time of the attempt."""
    if command.checkpoint_ms is None:
        return course.resumed
    productive_ms = progress(course, at_ms) - course.resumed.saved_ms
    whole_ms = productive_ms - productive_ms % command.checkpoint_ms
    if not whole_ms:
        return course.resumed
    return Progress(course.resumed.saved_ms + whole_ms, course.productive_from_ms + whole_ms)


def saved_on_leaving(command: Command, course: Life, signalled_at_ms: Ms, left_at_ms: Ms) -> Progress:
    """What is saved by a job that leaves on SIGTERM: up to the signal, if it saves then; else its last checkpoint."""
    reached_ms = progress(course, signalled_at_ms)
    if command.save_on_sigterm and command.checkpoint_ms is not None and reached_ms > course.resumed.saved_ms:
        return Progress(reached_ms, left_at_ms)
    return saved(command, course, left_at_ms)


def leaving_ms(command: Command, seed: int, job: str, attempt_number: int) -> Ms | None:
    """How long the attempt takes to leave after SIGTERM; None: it ignores the signal.

    Lognormal with a median of 3 s and a 95th percentile of 20 s. Ignoring belongs to the program, so all attempts of a job do.
    """
    if command.ignore_sigterm or uniform(seed, "ignores", job) * PPM_WHOLE < IGNORING_PPM:
        return None
    at = uniform(seed, "leaves", job, attempt_number)
    return lognormal_ms(at, median_ms=LEAVING_MEDIAN_MS, p95_ms=LEAVING_P95_MS)
