"""Shares with dates at the command line, in one real lab; the tests run in their order."""

import sys
from collections.abc import Iterator

import pytest

from tests.cli.terminal import VISION, Terminal, lab_with

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with lab_with(tmp_path_factory.mktemp("dated"), VISION, "ada", "mia") as terminal:
        yield terminal


def shares(terminal: Terminal) -> tuple[int, int]:
    """The shares of detection and tracking, in percent."""
    found = {each["budget"]: each["share_ppm"] for each in terminal.type("budgets", "--json").json["budgets"]}
    return found["detection"] // 10_000, found["tracking"] // 10_000


@needs_linux
@pytest.mark.timeout(120)
def test_a_share_with_an_end_is_set_runs_and_is_called_off(terminal: Terminal) -> None:
    assert terminal.type("budgets", "planned").out.strip() == "no share has a date"
    words = (
        "budgets",
        "set",
        "vision",
        "detection=75%",
        "tracking=15%",
        "--until",
        "14d",
        "--reason",
        "the paper is due",
        "--json",
    )
    one = terminal.type(*words, user="mia").json
    assert (one["state"], shares(terminal)) == ("running", (75, 15))
    name = one["planned"]["change"][-8:]
    table = terminal.type("budgets", "planned").out
    assert [word in table for word in (name, "vision", "running", "mia", "detection=75%")] == [True] * 5, table
    refused = terminal.type("budgets", "set", "vision", "detection=1%", "tracking=1%", "--reason", "now", user="mia")
    assert (refused.code, "[dated_running]" in refused.err, "budgets call-off" in refused.err) == (1, True, True), refused
    twice = terminal.type(
        "budgets", "set", "vision", "detection=1%", "tracking=1%", "--from", "4h", "--until", "8h", "--reason", "now", user="mia"
    )
    assert (twice.code, "[dated_overlap]" in twice.err) == (1, True), twice
    foreign = terminal.type("budgets", "call-off", name, "--reason", "mine", user="ada")
    assert (foreign.code, "[not_a_manager]" in foreign.err) == (1, True), foreign
    off = terminal.type("budgets", "call-off", name, "--reason", "the paper is out", user="mia")
    assert (off.code, "the shares of before hold again" in off.out, shares(terminal)) == (0, True, (35, 60)), off
    full = terminal.type("budgets", "planned", name).out
    assert [word in full for word in ("begun at", "ended at", "the paper is out")] == [True] * 3, full
    history = terminal.type("budgets", "history").out
    assert "called off" in history


@needs_linux
@pytest.mark.timeout(120)
def test_a_share_is_asked_for_two_weeks_given_and_its_renewal_asked(terminal: Terminal) -> None:
    ask = ("budgets", "propose", "detection", "--share", "41%", "--until", "14d", "--text", "a larger set", "--json")
    one = terminal.type(*ask, user="ada").json["proposed"]["proposal"][-8:]
    assert "UNTIL" in terminal.type("budgets", "proposals", user="mia").out
    given = terminal.type("budgets", "accept", one, "tracking=59%", user="mia")
    assert (given.code, "accepted: " in given.out, "running" in given.out, shares(terminal)) == (0, True, True, (41, 59)), given
    renewal = terminal.type(
        "budgets", "propose", "detection", "--renew", one, "--until", "28d", "--text", "one more set", user="ada"
    )
    assert (renewal.code, f"the renewal of {one}" in renewal.out) == (0, True), renewal
    assert f"renewal {renewal.out[18:26]} asked" in terminal.type("budgets", "planned").out
    accepted = terminal.type("budgets", "accept", renewal.out[:26], user="mia")
    assert (accepted.code, "running" in accepted.out) == (0, True), accepted
    assert "extended until" in terminal.type("budgets", "planned", one).out


@needs_linux
@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("set", "lab", "vision=1%", "tools=1%", "--from", "soon", "--reason", "x"), 2, "'soon' is no instant"),
        (("planned", "zzzz"), 1, "there is no dated change 'zzzz'"),
        (("call-off", "ab", "--reason", "x"), 2, "four of its last letters"),
        (("propose", "detection", "--text", "x"), 2, "one of --share and --renew"),
        (("propose", "detection", "--renew", "zzzz", "--text", "x"), 1, "there is no dated change"),
    ],
)
def test_what_is_typed_wrong_is_told(terminal: Terminal, words: tuple[str, ...], code: int, sentence: str) -> None:
    said = terminal.type("budgets", *words, user="mia")
    assert (said.code, sentence in said.err) == (code, True), said
