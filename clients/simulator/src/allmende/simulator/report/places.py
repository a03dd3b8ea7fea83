"""Where a file is written before it is whole: beside its place, under another name, and then renamed. Never writes anything."""

import os
from pathlib import Path


def real(path: Path) -> Path:
    """The place itself. Links are followed, so that the file that a link names is replaced and not the link."""
    return Path(os.path.realpath(path))


def draft(target: Path) -> Path:
    """The other name. With the process's number: two runs that write to the same place do not write into one another."""
    return target.with_name(f".{target.name}.{os.getpid()}.part")
