"""A cgroup (version 2) for each replica, where this process may make one: what is in it can be killed as a whole.

Sets no limits. Where there is no version 2, or no right to it, every function answers None or does nothing.
"""

import contextlib
from pathlib import Path

_KILL = "cgroup.kill"


class Cgroups:
    """Where cgroups are made: below the one that the agent itself runs in."""

    def __init__(self, mount: Path, home: Path) -> None:
        self.mount = mount
        self._home = home

    def make(self, name: str) -> Path | None:
        """A new cgroup."""
        made = self._home / f"allmende-{name}"
        try:
            made.mkdir(exist_ok=True)
            return made if (made / _KILL).exists() else None
        except OSError:
            return None

    def end(self, name: str) -> bool:
        """Kill what is in a cgroup that may be left, and remove it; True when nothing is there any more."""
        made = self._home / f"allmende-{name}"
        with contextlib.suppress(OSError):
            (made / _KILL).write_text("1")
        with contextlib.suppress(OSError):
            made.rmdir()
        return not made.exists()


def find() -> Cgroups | None:
    """Where this process may make cgroups; None: nowhere."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line]
        own = [line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    except OSError:
        return None
    if not mounts or not own:
        return None
    mount = Path(mounts[0][4])
    home = mount / own[0].removeprefix("0::").lstrip("/")
    probe = Cgroups(mount, home)
    return probe if probe.make("probe") is not None and probe.end("probe") else None
