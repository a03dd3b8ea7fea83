"""What a command is told before its slice ends, and as whom it runs: tables that need no Linux."""

import pytest

from allmende.agent.process.accounts import Account, account_for
from allmende.agent.process.surroundings import Notice, notice_of
from allmende.proto.units import HOUR_MS, MINUTE_MS


@pytest.mark.parametrize(
    ("sentence", "environment", "slice_ms", "notice"),
    [
        ("a tenth before", {}, 10 * MINUTE_MS, Notice(MINUTE_MS, b"")),
        ("five minutes at most", {}, 8 * HOUR_MS, Notice(5 * MINUTE_MS, b"")),
        ("as asked", {"ALLMENDE_NOTICE_MS": "7", "ALLMENDE_NOTICE_SIGNAL": "USR1"}, HOUR_MS, Notice(7, b"1")),
        ("with or without SIG", {"ALLMENDE_NOTICE_SIGNAL": "SIGUSR2"}, MINUTE_MS, Notice(6_000, b"2")),
        ("never before the start", {"ALLMENDE_NOTICE_MS": "99999999"}, 5, Notice(5, b"")),
        ("nonsense is as if unset", {"ALLMENDE_NOTICE_MS": "-1", "ALLMENDE_NOTICE_SIGNAL": "KILL"}, 100, Notice(10, b"")),
    ],
)
def test_notices(sentence: str, environment: dict[str, str], slice_ms: int, notice: Notice) -> None:
    assert notice_of(environment, slice_ms) == notice, sentence


ROOT, ANN = Account("root", 0, 0, (0,), "/root", "/bin/sh"), Account("Ann.Smith", 1_000, 100, (100,), "/home/ann", "/bin/sh")
BOB, TOOR = ANN._replace(name="bob", uid=1_001), ROOT._replace(name="toor")


@pytest.mark.parametrize(
    ("sentence", "user", "own", "expected"),
    [
        ("root becomes the submitter", "bob", ROOT, BOB),
        ("root runs what its own person submits", "root", ROOT, ROOT),
        ("no account, no job", "zoe", ROOT, "no account zoe"),
        ("another administrator is nobody's submitter", "toor", ROOT, "administrator"),
        ("without the right to change user: its own user", "ann-smith", ANN, ANN),
        ("and nobody else", "bob", ANN, "does not run jobs of bob"),
        ("not even root", "root", ANN, "does not run jobs of root"),
    ],
)
def test_as_whom_a_job_runs(sentence: str, user: str, own: Account, expected: Account | str) -> None:
    found = account_for(user, own, {"bob": BOB, "toor": TOOR, "root": ROOT}.get)
    assert (isinstance(expected, str) and isinstance(found, str) and expected in found) or found == expected, sentence
