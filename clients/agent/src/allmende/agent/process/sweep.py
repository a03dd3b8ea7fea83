"""Ends what is left of an attempt whose keeper was killed: found by the environment mark, through all of /proc. Linux.

Never signals by a process id alone: the process is held by a pidfd while its mark is read once more, so a reused id is never hit.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from allmende.agent.process.surroundings import MARK


def sweep(attempt: str) -> int:
    """SIGKILL for everything that carries the attempt's mark; returns how many there were."""
    mark = f"{MARK}={attempt}".encode()
    return sum(_kill(pid, mark) for pid in _marked(mark))


def _marked(mark: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _carries(int(entry.name), mark):
            yield int(entry.name)


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill(pid: int, mark: bytes) -> bool:
    try:
        held = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _carries(pid, mark):
            return False
        signal.pidfd_send_signal(held, signal.SIGKILL)
        return True
    except OSError:
        return False
    finally:
        os.close(held)
