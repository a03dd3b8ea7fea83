"""The command as a person types it: exit codes, what is said of faults, and the same bytes whatever the hash seed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

SMALL = ("--scenario", "squatters", "--days", "1", "--policy", "fifo")
CLUSTER = '[[nodes]]\nprefix = "n"\ncount = 2\ngpus = 8\n'
JOBS = (
    "job_id,submitted_at_s,user,budget,replicas,gpus_per_replica,runtime_s,slice_s,resumable,priority,kind,max_runtime_s\n"
    "a,0,ada,vision,1,8,3600,600,,,,\nb,60,bob,tools,2,8,1800,900,,,,\nc,90,bob,tools,1,1,300,300,,,,\nd,95,ada,,1,4,300,0,,,,\n"
)


class Said(NamedTuple):
    code: int
    out: bytes
    err: str


def typed(*words: str, hash_seed: str = "0") -> Said:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "allmende.simulator", *words], capture_output=True, env=environment, timeout=50, check=False
    )
    said = Said(done.returncode, done.stdout, done.stderr.decode())
    assert "Traceback" not in said.err, said.err
    return said


def files(folder: Path, jobs: str = JOBS) -> tuple[str, ...]:
    (folder / "cluster.toml").write_text(CLUSTER)
    (folder / "jobs.csv").write_text(jobs)
    return "--cluster", str(folder / "cluster.toml"), "--jobs", str(folder / "jobs.csv")


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing to run": ((), "--scenario NAME"),
    "two inputs": (("--scenario", "gamers", "--philly", "x"), "exclude one another"),
    "a scenario that there is not": (("--scenario", "mars"), "ai2-lab"),
    "no days": ((*SMALL[:2], "--days", "0"), "--days: 0 is not"),
    "a load of nothing": ((*SMALL[:2], "--load", "0.0"), "--load: '0.0' is not"),
    "a load in words": ((*SMALL[:2], "--load", "much"), "2.5"),
    "a policy that there is not": (("--scenario", "gamers", "--policy", "karma"), "priority"),
    "another policy that there is not": ((*SMALL, "--compare", "karma"), "priority"),
    "a setting that there is not": (("--scenario", "gamers", "--set", "speed=1"), "margin_ppm"),
    "a setting in the wrong form": (("--scenario", "gamers", "--set", "grace_ms=soon"), "90s"),
    "a length without a unit": (("--philly", "x", "--slice", "30"), "30m"),
    "an option twice": ((*SMALL, "--seed", "1", "--seed=2"), "--seed is given more than once"),
    "no time zone": (("--sacct", __file__, "--timezone", ""), "no time zone known here"),
    "jobs without a cluster": (("--jobs", "jobs.csv"), "--cluster FILE.toml"),
    "a file that there is not": (("--philly", "nowhere"), "nowhere"),
    "a warm-up for a scenario": ((*SMALL, "--warm-up", "1d"), "brings its own"),
    "an output that cannot be written": ((*SMALL, "--html", "/proc/report.html"), "cannot be written"),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_cannot_be_run_is_refused_in_a_sentence(sentence: str) -> None:
    words, said = WRONG[sentence]
    answer = typed(*words)
    assert (answer.code, answer.out) == (2, b"")
    assert said in answer.err


def test_bad_rows_are_named_by_file_line_and_column_and_may_be_skipped(tmp_path: Path) -> None:
    words = files(tmp_path, JOBS.replace("b,60", "b,soon"))
    refused = typed(*words)
    assert (refused.code, f"{tmp_path}/jobs.csv:3:2: submitted_at_s:" in refused.err) == (2, True)
    counted = typed(*words, "--skip-bad")
    assert counted.code == 0
    assert b"1 bad row" in counted.out


@pytest.mark.parametrize("policy", ["allmende", "priority", "fifo"])
def test_a_list_of_jobs_runs_under_every_policy(policy: str, tmp_path: Path) -> None:
    said = typed(*files(tmp_path), "--policy", policy, "--json")
    figures = json.loads(said.out)
    assert (said.code, figures["policy"], figures["slice_violations"]) == (0, policy, 0)
    assert {"delivered_owed_weekly", "teams_at_95", "worst_team", "lost_fraction", "runtime_s", "peak_mib"} <= figures.keys()


def test_the_same_inputs_and_seed_give_the_same_bytes(tmp_path: Path) -> None:
    def written(hash_seed: str) -> dict[str, bytes]:
        folder = tmp_path / hash_seed
        html = folder / "report.html"
        words = ("--scenario", "squatters", "--days", "1", "--no-cost", "--json", "--csv-dir", str(folder), "--html", str(html))
        said = typed(*words, hash_seed=hash_seed)
        assert said.code == 0
        return {"json": said.out, **{path.name: path.read_bytes() for path in sorted(folder.iterdir())}}

    assert written("1") == written("2")


def test_settings_and_scenarios_are_listed() -> None:
    assert b"burst-after-quiet" in typed("--list-scenarios").out
    assert b"margin_ppm" in typed("--list-settings").out


def test_policies_stand_side_by_side(tmp_path: Path) -> None:
    said = typed(*files(tmp_path), "--policy", "allmende", "--compare", "fifo")
    assert said.code == 0
    assert b"fifo" in said.out


def test_allmende_simulate_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "allmende.cli", "simulate", "--list-scenarios"], capture_output=True, timeout=50, check=False
    )
    assert (done.returncode, b"ai2-lab" in done.stdout) == (0, True)


def test_ctrl_c_gives_the_figures_so_far(tmp_path: Path) -> None:
    words = ("--scenario", "ai2-lab", "--days", "300", "--policy", "fifo", "--json", "--csv-dir", str(tmp_path / "csv"))
    run = subprocess.Popen([sys.executable, "-m", "allmende.simulator", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # Well into the run: the folder is made before it, and then it has computed for a while.
    while not (tmp_path / "csv").exists() or _computed_s(run.pid) < 4.0:
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=50)
    assert (run.returncode, b"so far" in err) == (130, True)
    figures = json.loads(out)
    assert figures["partial"] is True
    assert figures["measured_to_ms"] < figures["window_to_ms"]
    assert (tmp_path / "csv" / "jobs.csv").stat().st_size > 0


def _computed_s(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_full_disk_behind_stdout_is_said_in_a_sentence(words: tuple[str, ...], tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "allmende.simulator", *files(tmp_path), *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=50, check=False)
    assert (done.returncode, done.stderr.decode()) == (74, "standard output cannot be written: No space left on device\n")


def test_the_json_has_one_object_with_the_compared_runs_below(tmp_path: Path) -> None:
    (tmp_path / "proposal.toml").write_text('[lab]\n[lab.vision]\nshare = "10%"\n[lab.tools]\nshare = "90%"\n')
    words = ("--json", "--set", "quick_ppm=0%", "--compare", "allmende", "--compare", "fifo", "--compare-budgets")
    said = typed(*files(tmp_path), *words, str(tmp_path / "proposal.toml"))
    figures = json.loads(said.out)
    assert (said.code, said.err) == (0, "")
    labels = ["allmende", "fifo", "under proposal.toml"]
    assert list(figures["compared"]) == labels
    assert figures["side_by_side"]["runs"] == ["allmende quick_ppm=0%", *labels]
    assert (figures["settings"]["quick_ppm"], figures["compared"]["allmende"]["settings"]["quick_ppm"]) == (0, 20_000)
    shares = {team["budget"]: team["effective_share_ppm"] for team in figures["compared"][labels[2]]["teams"]}
    assert shares == {"vision": 100_000, "tools": 900_000}


def test_quiet_says_nothing_and_writes_what_was_asked_for(tmp_path: Path) -> None:
    said = typed(*files(tmp_path), "--quiet", "--html", str(tmp_path / "report.html"))
    assert (said.code, said.out, said.err) == (0, b"", "")
    assert (tmp_path / "report.html").is_file()
