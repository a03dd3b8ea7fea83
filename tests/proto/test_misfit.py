"""What does not fit a message is told in words that say what would; what is not known stays as the decoder said it."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from allmende.proto.ids import Id, Name
from allmende.proto.misfit import in_words


class Inner(Struct):
    title: Annotated[str, Meta(max_length=3)] = ""


class Form(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=10)] = 1
    reason: Annotated[str, Meta(min_length=1, max_length=1_000)] = "x"
    code: Annotated[str, Meta(min_length=4)] = "abcd"
    budget: Name = "a"
    job: Id | None = None
    mode: Literal["admit", "observe"] = "admit"
    paused: bool = False
    limits: dict[Name, Annotated[int, Meta(ge=0)]] = {}
    rows: Annotated[tuple[Inner, ...], Meta(max_length=2)] = ()


SAID: tuple[tuple[dict[str, Any], str], ...] = (
    ({"count": 0}, "count must be at least 1"),
    ({"count": 10**15}, "count must be at most 10"),
    ({"count": "1"}, "count must be a whole number, not a text"),
    ({"count": 1.5}, "count must be a whole number, not a number with a fraction"),
    ({"paused": "yes"}, "paused must be true or false, not a text"),
    ({"reason": ""}, "reason is empty"),
    ({"reason": "x" * 1_001}, "reason must have at most 1,000 characters"),
    ({"code": "abc"}, "code must have at least 4 characters"),
    ({"budget": "A"}, "budget is not a name: up to 63 of a-z, 0-9, - and _, with a letter or digit at both ends"),
    ({"limits": {"NO": 1}}, "a key of limits is not a name: up to 63 of a-z, 0-9, - and _, with a letter or digit at both ends"),
    ({"limits": {"a": -1}}, "limits[...] must be at least 0"),
    ({"limits": 5}, "limits must be a table, not a whole number"),
    ({"mode": "fast"}, "mode cannot be 'fast'"),
    ({"rows": [{"title": "long"}]}, "rows[0].title must have at most 3 characters"),
    ({"rows": [{}, {}, {}]}, "rows must have at most 2 entries"),
    ({"job": 7}, "job must be a text or nothing, not a whole number"),
    ({"moode": 1}, "Object contains unknown field `moode`"),
)


@pytest.mark.parametrize(("fields", "words"), SAID, ids=[words for _, words in SAID])
def test_what_does_not_fit_says_what_would(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(msgspec.json.encode(fields), type=Form)
    assert in_words(caught.value) == words


def test_a_whole_that_is_something_else() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(b"[]", type=Form)
    assert in_words(caught.value) == "it must be a table, not a list"
