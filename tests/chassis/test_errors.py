"""One table: which failure leads to what."""

import pytest

from allmende.chassis.errors import Misconfigured, Poison, Refused, StaleTerm, Transient, Unknown, action_for
from allmende.proto.envelope import Refusal


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (Transient("lock"), "retry"),
        (Unknown("commit"), "retry"),
        (TimeoutError(), "retry"),
        (ConnectionResetError(), "retry"),
        (Poison("bad", "cannot be handled"), "quarantine"),
        (Refusal("bad", "cannot be believed"), "quarantine"),
        (Refused("too_large"), "quarantine"),
        (KeyError("what nobody foresaw"), "quarantine"),
        (RecursionError(), "quarantine"),
        (AssertionError("broken invariant"), "stop"),
        (StaleTerm("taken over"), "stop"),
        (Misconfigured("wrong"), "stop"),
        (MemoryError(), "stop"),
        (KeyboardInterrupt(), "stop"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_what_is_done_about_a_failure(error: BaseException, action: str) -> None:
    assert action_for(error) == action
