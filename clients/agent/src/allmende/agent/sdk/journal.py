"""The ends that the ledger has not confirmed, in a file: an agent that is killed leaves them to the next one of its cluster.

An attempt whose end nobody says keeps its GPUs for ever, and only the agent may say it. A line is with the operating system when
`keep` returns, so it survives the death of the process; a power cut may lose the last ones. Knows nothing of how attempts end.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

import msgspec
from msgspec import Struct

from allmende.agent.lines import read
from allmende.agent.sdk.attempts import ENDS_REMEMBERED, Ending
from allmende.proto.agent import AttemptEnded, UsageTick

# The file is written anew when it has so many lines more than then.
REWRITE_AFTER = 100_000


class _Kept(Struct, frozen=True, kw_only=True, tag_field="what", tag="kept", forbid_unknown_fields=True):
    end: AttemptEnded
    ticks: tuple[UsageTick, ...] = ()


class _Confirmed(Struct, frozen=True, kw_only=True, tag_field="what", tag="confirmed", forbid_unknown_fields=True):
    attempts: tuple[str, ...]


_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[_Kept | _Confirmed] = msgspec.json.Decoder(_Kept | _Confirmed)


class Journal:
    """The file of one cluster. One process at a time.

    Raises:
        ValueError: the file is not a journal.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = 0
        self._unconfirmed: dict[str, Ending] = {}
        self._confirmed: OrderedDict[str, None] = OrderedDict()
        if path.exists():
            with path.open("rb") as lines:
                for line in read(_decoder, lines, "the journal of ends"):
                    if isinstance(line, _Kept):
                        self._unconfirmed[line.end.attempt] = Ending(line.end, line.ticks)
                    else:
                        self._take(line.attempts)
        self._file = self._rewritten()

    @property
    def unconfirmed(self) -> tuple[Ending, ...]:
        """The ends to say, oldest first."""
        return tuple(self._unconfirmed.values())

    def knows(self, attempt: str) -> bool:
        """True for an end that was kept, whether or not it has been confirmed since."""
        return attempt in self._unconfirmed or attempt in self._confirmed

    def keep(self, ending: Ending) -> None:
        """Keep an end, before anybody is told of it."""
        self._unconfirmed[ending.body.attempt] = ending
        self._append(_Kept(end=ending.body, ticks=ending.ticks))

    def confirmed(self, attempts: Iterable[str]) -> None:
        """The ledger has these ends: nobody need say them again."""
        ours = tuple(attempt for attempt in attempts if attempt in self._unconfirmed)
        if ours:
            self._take(ours)
            self._append(_Confirmed(attempts=ours))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _take(self, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            self._unconfirmed.pop(attempt, None)
            self._confirmed[attempt] = None
        while len(self._confirmed) > ENDS_REMEMBERED:
            self._confirmed.popitem(last=False)

    def _append(self, line: _Kept | _Confirmed) -> None:
        data = _encode(line) + b"\n"
        written = os.write(self._file.fileno(), data)
        assert written == len(data), "the disk is full: an end that is not kept may be lost with this process"
        self._lines += 1
        if self._lines > REWRITE_AFTER:
            self._file.close()
            self._file = self._rewritten()

    def _rewritten(self) -> FileIO:
        """Write the file anew with what still counts, in place of the old one; a line that a crash cut short goes with it."""
        part = self._path.with_name(f"{self._path.name}.part")
        with part.open("wb") as file:
            file.writelines(self._all())
        part.replace(self._path)
        self._lines = 0
        return self._path.open("ab", buffering=0)

    def _all(self) -> Iterator[bytes]:
        if self._confirmed:
            yield _encode(_Confirmed(attempts=tuple(self._confirmed))) + b"\n"
        for ending in self._unconfirmed.values():
            yield _encode(_Kept(end=ending.body, ticks=ending.ticks)) + b"\n"
