"""The failures that the shell knows by name, and the one function that says what to do about a failure.

A refusal is a value (`allmende.proto.envelope.Refusal` carries it to the publisher); a failure is an exception. Knows no driver:
`db` and `bus` translate what theirs raise into these.
"""

from typing import Literal


class Transient(Exception):
    """It may go well when tried again: a lost connection, a lock, a server that is starting."""


class Unknown(Transient):
    """A commit whose answer was lost: it may have happened. Whoever tries again must be able to tell (the inbox can)."""


class Poison(Exception):
    """This one message can never be handled. `code` is stable and travels to its publisher with the sentence."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


class Misconfigured(Exception):
    """The service cannot work as it is set up; one sentence says what to change. The process ends with code 78."""


class Refused(Exception):
    """The other side will never take what was sent: `message_too_large`, `not_permitted`."""

    def __init__(self, code: str, sentence: str = "") -> None:
        super().__init__(sentence or code)
        self.code = code


class StaleTerm(Exception):
    """Somebody else is the single writer now. Nothing of this process may be written any more."""


Action = Literal["retry", "quarantine", "stop"]


def action_for(error: BaseException) -> Action:
    """What to do after a failure: try again, set the message aside, or end the process.

    A broken invariant (AssertionError) ends the process, because nothing computed after it can be believed; so does a set-up that
    cannot work, because every message would fail alike and quarantine would empty the stream. What nobody foresaw is taken for
    the message's fault: `worker` confirms that by handling nothing without it.
    """
    if isinstance(error, Transient | OSError | TimeoutError):
        return "retry"
    if isinstance(error, AssertionError | StaleTerm | Misconfigured | MemoryError) or not isinstance(error, Exception):
        return "stop"
    return "quarantine"
