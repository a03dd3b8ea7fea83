"""How a synthetic job lives, leaves and resumes; and that chance has the promised distribution."""

import pytest

from allmende.agent.synthetic.behaviour import Progress, leaving_ms, life, progress, saved, saved_on_leaving
from allmende.agent.synthetic.chance import lognormal_ms, uniform
from allmende.agent.synthetic.command import BAD_USAGE, NOT_FOUND, Command, Unrunnable, parse
from allmende.agent.synthetic.failures import failures
from allmende.proto.units import DAY_MS, MINUTE_MS
from tests.agent.builders import T0

COMMAND = Command(runtime_ms=60 * MINUTE_MS, checkpoint_ms=10 * MINUTE_MS, startup_ms=MINUTE_MS)


@pytest.mark.parametrize(
    ("sentence", "command", "resumed_ms", "lasts_ms", "how"),
    [
        ("a job runs for its stated time after its start-up", COMMAND, 0, 61 * MINUTE_MS, "finished"),
        ("a resumed job runs for the rest", COMMAND, 40 * MINUTE_MS, 21 * MINUTE_MS, "finished"),
        ("a crashing job fails at its productive time", COMMAND._replace(crash_after_ms=5 * MINUTE_MS), 0, 6 * MINUTE_MS, "failed"),
        (
            "a crash that lies in what is saved comes at once",
            COMMAND._replace(crash_after_ms=5),
            10 * MINUTE_MS,
            MINUTE_MS,
            "failed",
        ),
        ("a crash after the end never comes", COMMAND._replace(crash_after_ms=60 * MINUTE_MS), 0, 61 * MINUTE_MS, "finished"),
    ],
)
def test_the_course_of_an_attempt(sentence: str, command: Command, resumed_ms: int, lasts_ms: int, how: str) -> None:
    course = life(command, Progress(resumed_ms), T0)
    assert (course.ends_at_ms - T0, course.how) == (lasts_ms, how), sentence


@pytest.mark.parametrize(
    ("sentence", "command", "after_ms", "saved_ms"),
    [
        ("nothing is saved before the first checkpoint", COMMAND, 11 * MINUTE_MS - 1, 0),
        ("the first checkpoint comes with the interval", COMMAND, 11 * MINUTE_MS, 10 * MINUTE_MS),
        ("the last whole interval counts", COMMAND, 29 * MINUTE_MS, 20 * MINUTE_MS),
        ("a job without checkpoints saves nothing", COMMAND._replace(checkpoint_ms=None), 50 * MINUTE_MS, 0),
        ("start-up is no progress", COMMAND, MINUTE_MS, 0),
    ],
)
def test_what_is_saved(sentence: str, command: Command, after_ms: int, saved_ms: int) -> None:
    course = life(command, Progress(), T0)
    state = saved(command, course, T0 + after_ms)
    assert state.saved_ms == saved_ms, sentence
    assert state.saved_at_ms == (T0 + MINUTE_MS + saved_ms if saved_ms else None)


def test_a_job_that_saves_on_sigterm_loses_nothing() -> None:
    command = COMMAND._replace(save_on_sigterm=True)
    course = life(command, Progress(10 * MINUTE_MS), T0)
    state = saved_on_leaving(command, course, T0 + 6 * MINUTE_MS, T0 + 7 * MINUTE_MS)
    assert state == Progress(15 * MINUTE_MS, T0 + 7 * MINUTE_MS)
    assert progress(course, T0 + 6 * MINUTE_MS) == 15 * MINUTE_MS


def test_leaving_has_a_median_of_3_s_a_95th_percentile_of_20_s_and_2_percent_who_ignore_it() -> None:
    # The distribution itself, at exact quantiles.
    assert lognormal_ms(0.5, median_ms=3_000, p95_ms=20_000) == 3_000
    assert lognormal_ms(0.95, median_ms=3_000, p95_ms=20_000) == 20_000
    # And a seeded sample of it: always the same 20,000 draws, so this never fails by chance.
    drawn = [leaving_ms(COMMAND, 1, f"job-{number}", 1) for number in range(20_000)]
    left = sorted(each for each in drawn if each is not None)
    assert abs(drawn.count(None) / 20_000 - 0.02) < 0.003
    assert abs(left[len(left) // 2] - 3_000) < 100
    assert abs(left[len(left) * 95 // 100] - 20_000) < 1_000


def test_the_same_names_draw_the_same_chance() -> None:
    assert uniform(1, "leaves", "a", 1) == uniform(1, "leaves", "a", 1)
    assert len({uniform(1, "a"), uniform(2, "a"), uniform(1, "b")}) == 3
    assert leaving_ms(COMMAND._replace(ignore_sigterm=True), 1, "a", 1) is None


def test_nodes_fail_as_often_as_asked() -> None:
    found = []
    for failure in failures(1, 128, 8, T0):
        if failure.at_ms > T0 + 1_000 * DAY_MS:
            break
        found.append(failure)
    assert abs(len(found) - 8_000) < 300
    assert {failure.node for failure in found} == set(range(128))
    assert [failure.at_ms for failure in found] == sorted(failure.at_ms for failure in found)
    assert next(failures(1, 128, 0, T0), None) is None


@pytest.mark.parametrize(
    "command",
    [
        Command(1),
        Command(5, 2, 0, 3, True, True),
        Command(5, None, 7, None, False, True),
    ],
)
def test_a_command_line_reads_back(command: Command) -> None:
    assert parse(command.line()) == command


@pytest.mark.parametrize(
    ("line", "exit_code"),
    [
        ("python train.py", NOT_FOUND),
        ("", NOT_FOUND),
        ("synthetic-job", BAD_USAGE),
        ("synthetic-job --runtime-ms", BAD_USAGE),
        ("synthetic-job --runtime-ms 1.5", BAD_USAGE),
        ("synthetic-job --runtime-ms -1", BAD_USAGE),
        ("synthetic-job --runtime-ms ٣", BAD_USAGE),
        ("synthetic-job --runtime-ms 1 --runtime-ms 2", BAD_USAGE),
        ("synthetic-job --runtime-ms 1 --ignore-sigterms", BAD_USAGE),
        ("synthetic-job --runtime-ms 1 --checkpoint-ms 0", BAD_USAGE),
        ("synthetic-job --runtime-ms 99999999999999", BAD_USAGE),
    ],
)
def test_a_command_line_that_cannot_be_read_says_so(line: str, exit_code: int) -> None:
    refused = parse(line.split())
    assert isinstance(refused, Unrunnable)
    assert refused.exit_code == exit_code
