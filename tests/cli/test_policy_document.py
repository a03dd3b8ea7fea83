"""A policy as a file says it: what is written is what is read, and a mistake is named."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.cli.commands import policies
from allmende.proto.policy import DebugLane, Policy
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS

# Around whole seconds and minutes, where a text form could round.
LENGTHS = st.sampled_from((0, 1, 999, SECOND_MS, SECOND_MS + 1, MINUTE_MS, 90 * MINUTE_MS, 8 * HOUR_MS, 48 * HOUR_MS))
LANES = st.builds(DebugLane, gpus=st.sampled_from((1, 8)), slice_ms=st.sampled_from((1, MINUTE_MS, 15 * MINUTE_MS)))
POLICIES = st.builds(
    Policy,
    mode=st.sampled_from(("observe", "admit", "enforce")),
    paused=st.booleans(),
    over_budget=st.sampled_from(("queue", "unallocated", "refuse")),
    slice_min_ms=st.none() | LENGTHS,
    slice_cap_ms=st.none() | LENGTHS,
    gpus_at_once=st.dictionaries(st.sampled_from(("vision", "1st", "slow_ms", "true")), st.sampled_from((0, 1, 64))),
    sessions_per_user=st.sampled_from((None, 0, 3)),
    debug_lane=st.none() | LANES,
    reservations=st.sampled_from((None, 0, 4)),
    reserve_from_gpus=st.sampled_from((None, 1, 64)),
)


@given(policy=POLICIES)
def test_what_is_shown_is_a_file_that_says_the_same(policy: Policy) -> None:
    assert policies.policy_of(tomllib.loads(policies.toml_of(policy))) == policy


@pytest.mark.parametrize(
    ("sentence", "said", "expected"),
    [
        ("a word", ["mode=admit"], {"mode": "admit"}),
        ("a switch", ["paused=true"], {"paused": True}),
        ("a length of time", ["slice_cap=4h"], {"slice_cap_ms": 4 * HOUR_MS}),
        ("zero is a length, and not unset", ["slice_cap=0"], {"slice_cap_ms": 0}),
        ("unset is neither zero nor the former", ["slice_min=unset"], {"slice_min_ms": None}),
        ("one budget's limit leaves the others", ["gpus_at_once.b=8"], {"gpus_at_once": {"a": 4, "b": 8}}),
        ("a limit of zero is kept", ["gpus_at_once.a=0"], {"gpus_at_once": {"a": 0}}),
        ("a limit is taken away", ["gpus_at_once.a=unset"], {"gpus_at_once": {}}),
        ("what is not there may be taken away", ["gpus_at_once.z=unset"], {}),
        ("a lane by one of its keys", ["debug_lane.per_user=2"], {"debug_lane": DebugLane(per_user=2)}),
        ("no reservations is not unset", ["reservations=0"], {"reservations": 0}),
        ("several at once", ["mode=observe", "sessions_per_user=0"], {"mode": "observe", "sessions_per_user": 0}),
    ],
)
def test_keys_are_changed_one_by_one(sentence: str, said: list[str], expected: dict[str, Any]) -> None:
    """BR-050: to lift a limit is to unset it; zero is a limit."""
    before: dict[str, Any] = {"slice_min_ms": MINUTE_MS, "gpus_at_once": {"a": 4}}
    document = policies.document_of(Policy(**before))
    after = policies.policy_of(policies.changed(document, [policies._pair(each) for each in said]))
    assert after == Policy(**(before | expected)), sentence


@pytest.mark.parametrize(
    ("sentence", "name", "content", "words"),
    [
        ("JSON in JSON in JSON", "p.json", b"[" * 60_000, "deeper"),
        ("TOML likewise", "p.toml", b"a = " + b"[" * 30_000, "deeper"),
        ("no UTF-8", "p.toml", b"\xff", "cannot be read"),
        ("no table", "p.json", b"[]", "not a document"),
        ("too long", "p.toml", b"#" * (policies.MAX_FILE_BYTES + 1), "larger"),
        ("nothing in it", "p.toml", b"# nothing\n", "says nothing"),
        ("nothing in it, as JSON", "p.json", b"{}", "says nothing"),
        ("cut off", "p.json", b'{"mode": ', "cannot be read"),
        ("not there", "q.toml", None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_policy_is_told(sentence: str, name: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        policies._read(tmp_path / name)


@pytest.mark.parametrize(
    ("sentence", "said", "words"),
    [
        ("no such key", "moode=admit", "moode"),
        ("no such mode", "mode=fast", "mode"),
        ("no value", "mode", "KEY=VALUE"),
        ("too deep", "a.b.c=1", "KEY=VALUE"),
        ("below a word", "mode.fast=1", "no keys below"),
        ("a length without a unit", "slice_cap=30", "not a duration"),
        ("less than nothing", "gpus_at_once.a=-1", "gpus_at_once"),
        ("a lane that is not short", "debug_lane.slice=16m", "debug_lane"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_sent(sentence: str, said: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        policies.policy_of(policies.changed(policies.document_of(Policy()), [policies._pair(said)]))
