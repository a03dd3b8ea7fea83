"""A real Slurm, and what we count on in it: held is held, an id outlives a requeue, its accounting is what we read.

What an upgrade of Slurm may change under us fails here first. One cluster for the file; each test ends its own jobs.
"""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from allmende.agent.slurm.output import SACCT_FIELDS, SlurmJob, SlurmNode, SlurmRun, read_accounting, read_jobs, read_nodes
from allmende.agent.slurm.wishes import id_of, mark_of, slice_of
from allmende.proto.units import HOUR_MS
from tests.agent.real_slurm import RealSlurm, missing, real_slurm

# MariaDB, slurmdbd, slurmctld and two slurmd start before the first of them: 13 s on two idle cores.
pytestmark = [pytest.mark.skipif(missing() is not None, reason=str(missing())), pytest.mark.timeout(120)]

USER = "nobody"


@pytest.fixture(scope="module")
def slurm() -> Iterator[RealSlurm]:
    with real_slurm(nodes=2, gpus=8) as started:
        yield started


def queue(slurm: RealSlurm) -> dict[str, SlurmJob]:
    read = read_jobs(slurm.run("squeue", "--json"))
    assert read.faults == ()
    return {str(job.number): job for job in read.rows}


def nodes(slurm: RealSlurm) -> dict[str, SlurmNode]:
    read = read_nodes(slurm.run("sinfo", "--json"))
    assert read.faults == ()
    return {node.name: node for node in read.rows}


def runs(slurm: RealSlurm, number: str) -> list[SlurmRun]:
    words = ("sacct", "--allocations", "--duplicates", "--parsable2", "--noheader", "--allusers", "--starttime=now-1days")
    read = read_accounting(slurm.run(*words, f"--jobs={number}", f"--format={','.join(SACCT_FIELDS)}"))
    assert read.faults == ()
    return list(read.rows)


def lives(slurm: RealSlurm, number: str, life: str) -> Callable[[], bool]:
    return lambda: queue(slurm)[number].life == life


def refused(slurm: RealSlurm, *words: str) -> bool:
    """Whether the job's own user is refused."""
    done = subprocess.run(words, env=slurm.environment, user=USER, capture_output=True, timeout=30, cwd="/")
    return done.returncode != 0


def test_a_job_with_gpus_comes_in_held_and_its_user_cannot_release_it(slurm: RealSlurm) -> None:
    asked = ("--gres=gpu:h100:2", "--gpus=3", "--gpus-per-node=1", "--exclusive")
    held = [slurm.batch(option, "--account=vision", script="sleep 60", user=USER) for option in asked]
    free = slurm.batch("--account=vision", "--hold", script="sleep 60", user=USER)
    for number in held:
        assert queue(slurm)[number].held
        for words in (["release", number], ["update", "job", number, "priority=9"], ["update", "job", number, "requeue=1"]):
            assert refused(slurm, "scontrol", *words), words
        assert refused(slurm, "scontrol", "update", "job", number, "reqnodelist=n2")
        assert refused(slurm, "scontrol", "update", "job", number, f"admincomment={mark_of('0' * 26)}")
    for later in ("trespernode=gres:gpu:2", "oversubscribe=no"):
        assert refused(slurm, "scontrol", "update", "job", free, later), "nor ask for GPUs afterwards"
    assert not refused(slurm, "scontrol", "release", free), "a hold of his own on a job without GPUs is his own"
    assert not refused(slurm, "scontrol", "update", "job", held[0], "comment=slice=2h"), "his wishes are his own while it waits"
    assert slice_of(queue(slurm)[held[0]], HOUR_MS) == 2 * HOUR_MS
    assert all(queue(slurm)[number].held for number in held)
    assert [queue(slurm)[number].gpus_per_node for number in held] == [2, 3, 1, 0]
    slurm.run("scancel", *held, free)


def test_a_job_without_gpus_is_not_our_business(slurm: RealSlurm) -> None:
    number = slurm.batch("--account=vision", script="true", user=USER)
    slurm.until("it ends", lives(slurm, number, "finished"))


def test_names_of_jobs_cannot_make_up_other_jobs(slurm: RealSlurm) -> None:
    evil = 'x|y\n99|root|vision "}],"errors":[1] \\'
    number = slurm.batch("--gres=gpu:1", "--account=vision", f"--job-name={evil}", f"--comment={evil}", script="true", user=USER)
    job = queue(slurm)[number]
    assert (job.name, job.comment, job.user) == (evil, evil, USER)
    assert "99" not in queue(slurm)
    slurm.run("scancel", number)


def test_a_grant_is_carried_out_where_it_says_and_an_eviction_comes_back_as_the_same_job(slurm: RealSlurm) -> None:
    number = slurm.batch("--gres=gpu:2", "--account=vision", script="sleep 60", user=USER)
    job = queue(slurm)[number]
    ours = id_of("c1", job)
    slurm.run("scontrol", "update", "job", number, f"admincomment={mark_of(ours)}", "reqnodelist=n2")
    slurm.run("scontrol", "release", number)
    slurm.until("it runs", lives(slurm, number, "runs"))
    assert queue(slurm)[number].places == (("n2", (0, 1)),)
    assert refused(slurm, "scontrol", "requeue", number), "a user would get it back without a hold"

    slurm.run("scontrol", "update", "job", number, "requeue=1")
    slurm.run("scontrol", "requeuehold", number)
    slurm.until("it waits", lives(slurm, number, "waits"))
    again = queue(slurm)[number]
    assert again.held
    assert again.submitted_at_ms > job.submitted_at_ms, "Slurm forgets when it was submitted"
    assert id_of("c1", again) == ours
    assert refused(slurm, "scontrol", "release", number)

    # Slurm waits two minutes after a requeue unless it is told a time.
    slurm.run("scontrol", "update", "job", number, "reqnodelist=n1", "starttime=now")
    slurm.run("scontrol", "release", number)
    slurm.until("it runs again", lives(slurm, number, "runs"))
    assert queue(slurm)[number].places == (("n1", (0, 1)),)
    slurm.run("scancel", number)
    slurm.until("the books have both runs", lambda: [run.life for run in runs(slurm, number)] == ["ended", "ended"])
    first, second = runs(slurm, number)
    assert [(run.gpus, run.nodes) for run in (first, second)] == [(2, ("n2",)), (2, ("n1",))]
    for run in (first, second):
        assert run.started_at_ms is not None
        assert run.ended_at_ms is not None
        assert run.held_ms == run.ended_at_ms - run.started_at_ms


def test_a_gang_has_its_devices_node_by_node(slurm: RealSlurm) -> None:
    number = slurm.batch("--gres=gpu:h100:8", "--nodes=2", "--account=language", script="sleep 60", user=USER)
    slurm.run("scontrol", "release", number)
    slurm.until("it runs", lives(slurm, number, "runs"))
    assert queue(slurm)[number].places == (("n1", tuple(range(8))), ("n2", tuple(range(8))))
    slurm.run("scancel", number)
    slurm.until("it is over", lives(slurm, number, "ended"))


def test_nodes_that_drain_and_that_are_gone(slurm: RealSlurm) -> None:
    assert nodes(slurm) == {name: SlurmNode(name, 8, "h100", True, False, "") for name in ("n1", "n2")}
    slurm.run("scontrol", "update", "nodename=n1", "state=drain", "reason=bad fan|x")
    slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=gone")
    assert nodes(slurm) == {
        "n1": SlurmNode("n1", 8, "h100", True, True, "bad fan|x"),
        "n2": SlurmNode("n2", 8, "h100", False, False, "gone"),
    }
    slurm.run("scontrol", "update", "nodename=n1,n2", "state=resume")
    slurm.until("both are back", lambda: all(node.up and not node.drains for node in nodes(slurm).values()))


def test_a_controller_that_goes_away_costs_no_job_and_frees_none(slurm: RealSlurm) -> None:
    runs_on = slurm.batch("--gres=gpu:1", "--account=robots", script="sleep 60", user=USER)
    waits = slurm.batch("--gres=gpu:1", "--account=robots", script="sleep 60", user=USER)
    slurm.run("scontrol", "release", runs_on)
    slurm.until("it runs", lives(slurm, runs_on, "runs"))
    before = queue(slurm)[runs_on]
    slurm.end("slurmctld")
    slurm.start_controller()
    slurm.until("it still runs", lives(slurm, runs_on, "runs"))
    assert queue(slurm)[runs_on] == before
    assert queue(slurm)[waits].held
    slurm.run("scancel", runs_on, waits)
