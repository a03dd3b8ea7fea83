"""A stranger at the command line: one lab started by `allmende up`, every command as a process, then the ends of the lab.

The tests of this module share the lab and run in the order in which they stand, as a person would go on.
"""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal, lab_with

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    # Real servers start four times in this module; a machine with little time left needs more than a minute for it.
    pytest.mark.timeout(120),
]

JOB = ("--", "synthetic-job", "--runtime-ms", "7200000")
TREE = """
[lab]
[lab.vision]
share = "60%"
members = ["ada"]
[lab.tools]
share = "40%"
members = ["ada", "bob", "OPERATOR"]
"""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    from allmende.cli.place import person

    with lab_with(tmp_path_factory.mktemp("cli"), TREE.replace("OPERATOR", person()), "ada", "bob") as terminal:
        yield terminal


def state(terminal: Terminal, job: str) -> str:
    found = terminal.type("why", job, "--json").json["job"]
    return str(found["outcome"] or found["state"])


def submitted(terminal: Terminal, user: str, *options: str) -> str:
    said = terminal.type("submit", "--json", *options, *JOB, user=user)
    assert said.code == 0, said
    assert said.json["answer"] == "queued"
    return str(said.json["job"])


def test_a_job_runs_and_says_why(terminal: Terminal) -> None:
    terminal.wait_for(lambda: terminal.type("nodes", "--json").json["nodes"], "nodes")
    job = submitted(terminal, "ada", "--budget", "vision", "--gpus", "8", "--slice", "1h", "--name", "train")
    terminal.wait_for(lambda: state(terminal, job) == "running", "it runs")
    why = terminal.type("why", job[-8:])
    assert why.code == 0
    assert f"{job} train" in why.out
    assert "protected for" in why.out
    assert "granted" in why.out
    jobs = terminal.type("jobs", "--mine", "--state", "running", user="ada").out.splitlines()
    assert jobs[0] == "jobs, newest first"
    assert jobs[2].split()[:4] == [job[-8:], "running", "vision", "8"]
    assert not any(line.endswith(" ") for line in jobs)
    assert terminal.type("jobs", "--mine", user="bob").out == "no such jobs\n"
    nodes = terminal.type("nodes")
    assert nodes.out.splitlines()[0] == "2 nodes, 16 healthy GPUs, 8 held"


def test_what_does_not_fit_waits_in_the_queue_and_may_be_cancelled(terminal: Terminal) -> None:
    job = submitted(terminal, "bob", "--budget", "tools", "--gpus", "8", "--replicas", "2", "--slice", "1h")
    terminal.wait_for(lambda: terminal.type("why", job, "--json").json["blockers"], "a blocker")
    queue = terminal.type("queue").out.splitlines()
    assert queue[0] == "1 job waits"
    assert queue[2].split()[:3] == ["1", job[-8:], "tools"]
    entry = terminal.type("queue", "--json").json["entries"][0]
    assert (entry["job"], entry["tier"], entry["gpus"]) == (job, "guaranteed", 16)
    assert "what it waits for" in terminal.type("why", job).out
    refused = terminal.type("cancel", job, user="ada")
    assert refused.code == 1
    assert "bob" in refused.err or "yours" in refused.err or "owner" in refused.err, refused.err
    assert terminal.type("cancel", job[-8:], user="bob").out == f"{job} is cancelled\n"
    assert terminal.type("cancel", job, "--json", user="bob").json["status"] == "already_ended"
    assert state(terminal, job) == "cancelled"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--budget", "nope"), "unknown_budget"),
        (("--budget", "lab"), "budget_not_leaf"),
        (("--budget", "vision"), "not_a_member"),
        (("--budget", "tools", "--slice", "30d"), "slice_above_cap"),
        (("--budget", "tools", "--gpus", "9"), "never_fits"),
        (("--budget", "tools", "--gpus", "8", "--replicas", "3"), "never_fits"),
        (("--slice", "1h"), "no_covering_budget"),
        (("--budget", "tools", "--cluster", "mars"), "unknown_cluster"),
    ],
)
def test_a_refused_job_says_why(terminal: Terminal, options: tuple[str, ...], code: str) -> None:
    said = terminal.type("submit", "--json", *options, *JOB, user="bob")
    assert said.code == 1
    assert (said.json["answer"], said.json["problem"]["code"]) == ("refused", code)


def test_unknown_things_are_refused_in_words(terminal: Terminal) -> None:
    for words, code, word in (
        (("why", "zzzzzz"), 1, "allmende jobs"),
        (("cancel", "zzzzzz"), 1, "allmende jobs"),
        (("queue", "--cluster", "mars"), 2, "c1"),
        (("nodes", "--cluster", "mars"), 2, "c1"),
        (("standings", "--cluster", "mars"), 2, "c1"),
        (("budgets", "rename", "vision", "Caf\udce9", "--reason", "typed in latin-1"), 1, "not_utf8"),
        (("budgets", "set", "lab", "vision=10%", "--cluster", "mars", "--reason", "misspelt"), 2, "c1"),
    ):
        said = terminal.type(*words)
        assert (said.code, said.out) == (code, ""), words
        assert word in said.err


def test_the_list_of_what_is_not_counted(terminal: Terminal) -> None:
    assert terminal.type("faults", "--json").json == {"faults": [], "more": False}
    assert "0 things not counted" in terminal.type("faults").out


def test_standings_and_the_tree(terminal: Terminal, tmp_path: Path) -> None:
    standings = terminal.type("standings", "--json").json
    assert {each["budget"] for each in standings["standings"]} == {"lab", "vision", "tools"}
    assert "OWED GPU-H" in terminal.type("standings").out
    assert "tools, 40% of lab, 40% of everything, 153.6 GPU-hours a day, 3 members" in terminal.type("budgets").out
    before = terminal.type("budgets", "show", "--json").json["revision"]
    file = tmp_path / "tree.toml"
    file.write_bytes((terminal.folder / "budgets.toml").read_bytes())
    assert terminal.type("budgets", "load", str(file), "--reason", "again").out == f"nothing differs from revision {before}\n"
    said = terminal.type("budgets", "set", "lab", "vision=50%", "tools=50%", "--reason", "even")
    assert said.out == f"revision {before + 1}\nvision: 60% -> 50%\ntools: 40% -> 50%\n"
    stale = terminal.type("budgets", "load", str(file), "--reason", "back", "--expect", str(before))
    assert (stale.code, f"({before} -> {before + 1})" in stale.err) == (3, True)
    back = terminal.type("budgets", "load", str(file), "--reason", "back", "--expect", str(before + 1))
    assert back.out == f"revision {before + 2} is in force\nvision: 50% -> 60%\ntools: 50% -> 40%\n"
    above = terminal.type("budgets", "set", "lab", "vision=61%", "tools=40%", "--reason", "more")
    assert above.code == 1
    assert "shares_exceed_parent" in above.err
    assert terminal.type("budgets", "set", "lab", "vision=1%", "tools=1%", "--reason", "mine", user="bob").code in (1, 69)


def test_what_the_ledger_tells(terminal: Terminal) -> None:
    statement = terminal.type("ledger", "statement", "vision", "--json").json
    sums = statement["opening_gpu_ms"] + sum(each["charged_gpu_ms"] for each in statement["lines"])
    assert (statement["budget"], statement["closing_gpu_ms"]) == ("vision", sums)
    assert "opening" in terminal.type("ledger", "statement", "vision").out
    assert terminal.type("ledger", "usage", "--by", "hour", "--csv").out.startswith("from_ms,budget,gpu_ms\n")
    assert terminal.type("ledger", "usage", "--of", "user", "--csv").out.startswith("from_ms,user,allocated_gpu_ms,")
    assert terminal.type("ledger", "usage", "--of", "gpu-model", "--json").json["by"] == "gpu_model"
    assert "GPU MODEL" in terminal.type("ledger", "usage", "--of", "gpu-model").out
    verified = terminal.type("ledger", "verify", "--json")
    assert (verified.code, verified.json["found"], verified.json["differences"]) == (0, 0, [])
    assert "0 differences" in terminal.type("ledger", "verify").out
    assert terminal.type("ledger", "verify", "--csv").out == "what,of,at_ms,recomputed,kept\n"
    demand = terminal.type("ledger", "demand", "--budget", "lab", "--json").json
    assert (demand["jobs_not_known"], {row["budget"] for row in demand["rows"]}) == (0, {"vision", "tools"})
    assert all(row["unmet_gpu_ms"] is not None and row["demand_gpu_ms"] > 0 for row in demand["rows"])
    assert terminal.type("ledger", "demand", "--csv").out.startswith("from_ms,budget,entitled_gpu_ms,demand_gpu_ms,owed_gpu_ms,")
    assert "UNMET" in terminal.type("ledger", "demand").out
    figures = terminal.type("ledger", "figures", "--json").json
    assert figures["installed_gpu_ms"] >= figures["available_gpu_ms"] > 0
    assert figures["hours_of_unknown_owed"] == figures["hours_of_unknown_capacity"], "of before the lab"
    assert sum(team["owed_gpu_ms"] for team in figures["teams"]) == figures["owed_gpu_ms"] > 0
    assert "utilisation" in terminal.type("ledger", "figures", "--budget", "vision").out
    assert {each["name"] for each in terminal.type("ledger", "waits", "--json").json["classes"]} >= {"debug", "all", "large"}
    assert terminal.type("ledger", "idle", "--csv").out.startswith("attempt,job,user,budget,gpus,")
    assert {each["reaches"] for each in terminal.type("ledger", "forecast", "--json").json["rows"]} == {"unknown"}
    assert "AT THIS RATE" in terminal.type("ledger", "forecast").out
    followed = [json.loads(each) for each in terminal.type("ledger", "follow", "--once", "--json").out.splitlines()]
    assert {each["type"] for each in followed} == {"usage.standing", "budget.usage"}
    assert terminal.type("ledger", "figures", "--csv").out.startswith("row,budget,installed_gpu_ms,")
    inner = terminal.type("ledger", "statement", "lab")
    assert (inner.code, "[has_budgets_below]" in inner.err) == (1, True)
    odd = terminal.type("ledger", "usage", "--from", "2026-11-01T00:01Z", "--until", "2026-11-02T00:00Z")
    assert (odd.code, "[not_on_an_edge]" in odd.err) == (1, True)
    assert terminal.type("ledger", "usage", "--json", "--csv").code == 2


def test_one_budget_is_created_renamed_moved_and_given_people(terminal: Terminal, tmp_path: Path) -> None:
    """BR-049: success names the revision and what is written; a stale write has its own exit code and names what changed."""
    before = terminal.type("budgets", "show", "--json").json["revision"]
    file = tmp_path / "before.toml"
    assert terminal.type("budgets", "export", str(file)).code == 0
    assert terminal.type("budgets", "export", str(file)).code == 2
    why = ("--reason", "a new project")
    made = terminal.type("budgets", "create", "hands", "--parent", "lab", "--share", "0%", "--manager", "ada", *why)
    assert made.out == f"revision {before + 1} is in force\nhands: new, 0% of lab\n"
    assert terminal.type("budgets", "create", "hands", "--parent", "lab", *why).code == 2
    assert "hands: title 'Hands and eyes'" in terminal.type("budgets", "rename", "hands", "Hands and eyes", *why).out
    assert "hands: member bob added" in terminal.type("budgets", "people", "hands", "--add-member", "bob", *why, user="ada").out
    assert terminal.type("budgets", "people", "hands", "--remove-member", "eve", *why).code == 2
    assert terminal.type("budgets", "create", "fingers", "--parent", "lab", *why).code == 0
    moved = terminal.type("budgets", "people", "hands", "--remove-member", "bob", *why)
    assert "hands: member bob removed" in moved.out
    assert "moved from lab to hands" in terminal.type("budgets", "move", "fingers", "--to", "hands", "--share", "50%", *why).out
    shown = terminal.type("budgets").out
    assert "hands (Hands and eyes), 0% of lab, 0% of everything, 0.0 GPU-hours a day, managed by ada" in shown
    assert "lab, 384.0 GPU-hours a day" in shown

    told = terminal.type("budgets", "history", "--budget", "fingers", "--json").json
    assert [each["revision"] for each in told["revisions"]] == [before + 6, before + 4]
    assert f"revision {before + 1}, " in terminal.type("budgets", "history").out
    assert "hands: new, 0% of lab" in terminal.type("budgets", "diff", str(before)).out
    assert terminal.type("budgets", "diff", str(before + 6), str(before)).out.splitlines()[1:] == ["fingers: gone", "hands: gone"]
    late = terminal.type("budgets", "set", "lab", "vision=1%", "tools=1%", "hands=1%", *why, "--expect", str(before))
    assert (late.code, "hands: new, 0% of lab" in late.err) == (3, True)
    assert terminal.type("budgets", "export", "--revision", str(before)).out == file.read_text()
    assert terminal.type("budgets", "export", "--at", "2001-01-01T00:00Z").code == 1
    assert terminal.type("budgets", "export", "--at", "5h").code == 2
    back = terminal.type("budgets", "load", str(file), "--reason", "as it was", "--expect", str(before + 6))
    assert back.code == 0, back
    verified = terminal.type("budgets", "verify", "--json").json
    assert verified == {"revisions": before + 7, "differing": []}


def test_a_second_up_is_refused(terminal: Terminal) -> None:
    said = terminal.type("up")
    assert said.code == 2
    assert "another `allmende up` runs" in said.err


def test_a_node_is_drained_and_takes_work_again(terminal: Terminal) -> None:
    busy = [each["node"] for each in terminal.type("nodes", "--json").json["nodes"] if each["held_gpus"]]
    free = next(each["node"] for each in terminal.type("nodes", "--json").json["nodes"] if each["node"] not in busy)
    refused = terminal.type("nodes", "drain", free, "--reason", "firmware", user="bob")
    assert (refused.code, refused.out) == (1, "")
    unknown = terminal.type("nodes", "drain", free, "no-such-node", "--reason", "firmware")
    assert (unknown.code, "never reported no-such-node" in unknown.err) == (1, True)
    drained = terminal.type("nodes", "drain", free, "--reason", "firmware", "--deadline", "1h")
    assert (drained.code, free in drained.out, "firmware" in drained.out) == (0, True, True)
    terminal.wait_for(lambda: state_of(terminal, free) == "drained", "it is empty")
    assert "cordoned: firmware" in terminal.type("nodes").out
    assert terminal.type("nodes", "uncordon", free, "--reason", "done").out == f"{free} takes work again\n"
    assert terminal.type("nodes", "drain-plan").out == "no node of c1 is cordoned\n"


def test_a_node_is_declared_lost_and_is_back_once_its_agent_has_reported_it(terminal: Terminal) -> None:
    busy = [each["node"] for each in terminal.type("nodes", "--json").json["nodes"] if each["held_gpus"]]
    free = next(each["node"] for each in terminal.type("nodes", "--json").json["nodes"] if each["node"] not in busy)
    refused = terminal.type("nodes", "declare-lost", free, "--reason", "no power", user="bob")
    assert (refused.code, refused.out) == (1, "")
    speaks = terminal.type("nodes", "declare-lost", free, "--reason", "no power")
    assert (speaks.code, "sign of life" in speaks.err, "--force" in speaks.err) == (1, True, True)
    unknown = terminal.type("nodes", "declare-lost", "no-such-node", "--reason", "no power")
    assert (unknown.code, "never reported no-such-node" in unknown.err) == (1, True)
    lost = terminal.type("nodes", "declare-lost", free, "--reason", "no power", "--force", "--json")
    assert (lost.code, lost.json["status"], lost.json["attempts"]) == (0, "declared", [])

    def is_back() -> bool:
        found = [each for each in terminal.type("nodes", "--json").json["nodes"] if each["node"] == free]
        return found[0]["healthy_gpus"] == found[0]["installed_gpus"]

    terminal.wait_for(is_back, "its agent has reported it again")


def test_a_policy_holds_at_once_and_a_waiting_job_is_held_changed_and_released(terminal: Terminal) -> None:
    assert terminal.type("policy", "show", "--cluster", "c1").out.splitlines()[0].startswith("# c1: nobody has set a policy")
    refused = terminal.type("policy", "set", "--cluster", "c1", "paused=true", "--reason", "mine", user="bob")
    assert (refused.code, refused.out) == (1, "")
    paused = terminal.type("policy", "set", "--cluster", "c1", "paused=true", "--reason", "a look at the racks")
    assert (paused.code, paused.out) == (0, "revision 1 is in force on c1\n")
    job = submitted(terminal, "ada", "--budget", "vision", "--gpus", "1", "--slice", "1m")
    terminal.wait_for(lambda: "paused" in blockers(terminal, job), "it waits, and says for what")
    held = terminal.type("hold", job, user="ada")
    assert (held.code, held.out) == (0, f"{job} is: priority 0, slice 1m, held\n")
    assert blockers(terminal, job) == ["held"]
    other = terminal.type("release", job, user="bob")
    assert (other.code, "only its owner or an operator may change it" in other.err) == (1, True)
    changed = terminal.type("change", job, "--priority", "5", "--slice", "2m", user="ada")
    assert changed.out == f"{job} is: priority 5, slice 2m, held\n"
    assert terminal.type("change", job, "--slice", "soon", user="ada").code == 2
    assert terminal.type("release", job, user="ada").out == f"{job} is: priority 5, slice 2m\n"
    assert "paused" in terminal.type("queue", "--explain").out
    stale = terminal.type("policy", "set", "--cluster", "c1", "mode=admit", "--expect", "0", "--reason", "late")
    assert (stale.code, stale.out) == (3, "")
    assert terminal.type("policy", "set", "--cluster", "c1", "paused=false", "--reason", "seen").code == 0
    terminal.wait_for(lambda: "paused" not in blockers(terminal, job), "nothing of the policy holds it back")
    history = terminal.type("policy", "history", "--cluster", "c1").out
    assert "a look at the racks" in history
    terminal.type("cancel", job, user="ada")


def blockers(terminal: Terminal, job: str) -> list[str]:
    return [each["code"] for each in terminal.type("why", job, "--json").json["blockers"]]


def state_of(terminal: Terminal, node: str) -> str:
    nodes = {each["node"]: each["state"] for each in terminal.type("nodes", "drain-plan", "--json").json["nodes"]}
    return str(nodes.get(node))


def all_at_once(terminal: Terminal) -> None:
    terminal.kill_all()


def the_bus_first(terminal: Terminal) -> None:
    """The cluster outlives its bus and `up`: it switches itself off as those do who are told to, and nobody can hear of it."""
    offs = terminal.truth.count('"power_off"')
    terminal.kill("nats-server")
    assert terminal.end(signal.SIGKILL) == -signal.SIGKILL
    terminal.wait_for(lambda: terminal.truth.count('"power_off"') > offs, "the cluster is off")
    terminal.kill_all()


@pytest.mark.parametrize("kill", [all_at_once, the_bus_first])
def test_killed_it_goes_on_where_it_was(terminal: Terminal, kill: Callable[[Terminal], None]) -> None:
    (job,) = [each["job"] for each in terminal.type("jobs", "--state", "running", "--json").json["jobs"]]
    before = len(terminal.type("why", job, "--json").json["attempts"])
    kill(terminal)
    terminal.up()
    terminal.wait_for(lambda: len(terminal.type("why", job, "--json").json["attempts"]) > before, "its next attempt")
    terminal.wait_for(lambda: state(terminal, job) == "running", "it runs again")
    assert "a node was lost" in terminal.type("why", job).out


def test_what_came_back_may_be_cancelled(terminal: Terminal) -> None:
    (job,) = [each["job"] for each in terminal.type("jobs", "--state", "running", "--json").json["jobs"]]
    assert terminal.type("cancel", job, user="ada").code == 0
    # Two in a hundred jobs ignore SIGTERM and leave only after two minutes of grace: more than a test should wait for.
    assert state(terminal, job) in ("ending", "cancelled")


def test_no_process_outlives_up_that_was_killed(terminal: Terminal) -> None:
    assert terminal.end(signal.SIGKILL) == -signal.SIGKILL
    terminal.wait_for(lambda: not terminal.processes(), "its children leave")


def test_ctrl_c_ends_it_cleanly(terminal: Terminal) -> None:
    terminal.up()
    assert terminal.end(signal.SIGINT) == 0
    assert terminal.processes() == []
    assert "the data stay" in terminal.log.read_text()
    gone = terminal.type("queue")
    assert gone.code == 69
    assert "allmende up" in gone.err
