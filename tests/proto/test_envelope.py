"""The gates: what a message must pass before anybody believes it, each failure with its code."""

import json
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto import budget
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal, decode, decode_value, encode, register
from allmende.proto.message import Message, MessageRefused, Problem
from tests.proto.samples import BODIES, MESSAGE, enveloped

TICK = next(body for body in BODIES if body.TYPE == "usage.tick")
GOOD: dict[str, Any] = json.loads(encode(enveloped(TICK)))


def changed(**changes: Any) -> bytes:
    """A good tick with other fields in its envelope; a value `...` removes the field."""
    return json.dumps({key: value for key, value in {**GOOD, **changes}.items() if value is not ...}).encode()


def body(**changes: Any) -> bytes:
    """A good tick with other fields in its body."""
    return changed(body={**GOOD["body"], **changes})


def padded(size: int) -> bytes:
    """A good tick of exactly this many bytes: JSON allows white space at its end."""
    return changed() + b" " * (size - len(changed()))


# Sentence -> (bytes, code, whether the id could be read).
GATES: dict[str, tuple[bytes, str, bool]] = {
    "nothing at all": (b"", "malformed_json", False),
    "text that is no JSON": (b"hello", "malformed_json", False),
    "JSON cut off": (changed()[:-1], "malformed_json", False),
    "two documents": (changed() + changed(), "malformed_json", False),
    "bytes that are no UTF-8": (changed().replace(b"c1-n001", b"c1-\xff"), "malformed_json", True),
    "a number that JSON does not know": (changed().replace(b"33", b"NaN", 1), "malformed_json", False),
    "one byte too many": (padded(MAX_MESSAGE_BYTES + 1), "message_too_large", False),
    "nested too deep in the body": (
        changed(body="HERE").replace(b'"HERE"', b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
        "nested_too_deep",
        False,
    ),
    "a list in a list in a list without end": (b"[" * 60_000, "wrong_type", False),
    "a list instead of an envelope": (b"[]", "wrong_type", False),
    "no id": (changed(id=...), "wrong_type", False),
    "an id that is a number": (changed(id=7), "wrong_type", False),
    "an id with a trailing newline": (changed(id=MESSAGE + "\n"), "wrong_type", False),
    "an instant that is text": (changed(sent_at_ms="1"), "wrong_type", False),
    "an instant with a fraction": (changed(sent_at_ms=1.5), "wrong_type", False),
    "an instant in nanoseconds": (changed(sent_at_ms=10**18), "wrong_type", False),
    "an instant before 1970": (changed(sent_at_ms=-1), "wrong_type", False),
    "a version that is true": (changed(version=True), "wrong_type", False),
    "version 0": (changed(version=0), "wrong_type", False),
    "a message of tomorrow": (changed(version=2), "unknown_message", True),
    "a message that nobody knows": (changed(type="usage.tock"), "unknown_message", True),
    "a body that is a list": (changed(body=[]), "wrong_type", True),
    "a body without its node": (changed(body={"cluster": "c1", "at_ms": 1, "counters": []}), "wrong_type", True),
    "a name with a trailing newline": (body(node="c1-n001\n"), "wrong_type", True),
    "a name with a dot": (body(cluster="c1.c2"), "wrong_type", True),
    "a name that is empty": (body(cluster=""), "wrong_type", True),
    "a number as text": (body(at_ms="1"), "wrong_type", True),
    "too many counters": (body(counters=[GOOD["body"]["counters"][0]] * 257), "wrong_type", True),
    "a counter below zero": (body(counters=[{**GOOD["body"]["counters"][0], "used_gpu_ms": -1}]), "wrong_type", True),
    "a counter beyond the largest amount": (
        body(counters=[{**GOOD["body"]["counters"][0], "used_gpu_ms": 2**60 + 1}]),
        "wrong_type",
        True,
    ),
    "a counter beyond every integer": (body(counters=[{**GOOD["body"]["counters"][0], "used_gpu_ms": 10**40}]), "wrong_type", True),
}


@pytest.mark.parametrize("sentence", GATES)
def test_a_gate_refuses(sentence: str) -> None:
    data, code, readable = GATES[sentence]
    with pytest.raises(Refusal) as caught:
        decode(data)
    assert caught.value.problem.code == code
    assert caught.value.message == (MESSAGE if readable else None)
    assert len(caught.value.problem.sentence) <= 1_000


def test_the_largest_message_is_taken() -> None:
    assert decode(padded(MAX_MESSAGE_BYTES)) == enveloped(TICK)


def test_a_field_of_tomorrow_is_tolerated_from_a_machine() -> None:
    data = changed(tomorrow=1, body={**GOOD["body"], "tomorrow": {"x": [1]}})
    assert decode(data) == enveloped(TICK)


def test_a_misspelt_field_of_a_person_is_refused() -> None:
    submitted = json.loads(encode(enveloped(next(each for each in BODIES if each.TYPE == "job.submitted"))))
    submitted["body"]["slice"] = 1
    with pytest.raises(Refusal, match="slice"):
        decode(json.dumps(submitted).encode())


@pytest.mark.parametrize("each", BODIES, ids=lambda each: each.TYPE)
def test_what_is_encoded_is_decoded(each: Message) -> None:
    assert decode(encode(enveloped(each))) == enveloped(each)


def test_a_message_that_fits_no_stream_is_not_made() -> None:
    large = MessageRefused(
        service="ledger",
        publisher="c1",
        subject="x",
        stream="USAGE",
        stream_seq=1,
        message=None,
        problem=Problem(code="abc", sentence="x" * 70_000),
    )
    with pytest.raises(Refusal) as caught:
        encode(enveloped(large))
    assert caught.value.problem.code == "message_too_large"


def test_what_is_not_utf_8_is_not_encoded() -> None:
    """Python reads an argument such as `caf\\xe9` of a Latin-1 terminal into a lone surrogate, which JSON cannot hold."""
    foreign = MessageRefused(
        service="ledger",
        publisher="c1",
        subject=os.fsdecode(b"caf\xe9"),
        stream="USAGE",
        stream_seq=1,
        message=None,
        problem=Problem(code="abc", sentence="x"),
    )
    with pytest.raises(Refusal) as caught:
        encode(enveloped(foreign))
    assert caught.value.problem.code == "not_utf8"


@given(st.binary(max_size=300))
def test_noise_is_refused_and_never_more_than_that(data: bytes) -> None:
    with pytest.raises(Refusal):
        decode(data)


@given(st.data())
def test_a_good_message_with_one_byte_changed_is_read_or_refused(data: st.DataObject) -> None:
    good = bytearray(changed())
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(good))
        code = None
    except Refusal as refusal:
        code = refusal.problem.code
    assert code in {None, "malformed_json", "wrong_type", "unknown_message"}


def _request(data: bytes) -> object:
    return decode_value(msgspec.json.Decoder(budget.TreeQuery), data, "tree")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"{", "malformed_json"),
        (b'{"revision": "1"}', "wrong_type"),
        (b'{"after": "a\\n"}', "wrong_type"),
        (b'{"x": ' + b"[" * 50_000, "nested_too_deep"),
        (b" " * (MAX_MESSAGE_BYTES + 1), "message_too_large"),
    ],
)
def test_a_request_passes_the_same_gates(data: bytes, code: str) -> None:
    with pytest.raises(Refusal) as caught:
        _request(data)
    assert caught.value.problem.code == code


def test_two_messages_cannot_share_a_type_and_version() -> None:
    class Impostor(Message, frozen=True, kw_only=True):
        TYPE = "usage.tick"

    declare: Callable[[type[Message]], None] = register
    with pytest.raises(ValueError, match="declared twice"):
        declare(Impostor)
