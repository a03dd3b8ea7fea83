"""requirements.lock: all is pinned and hashed, nothing says where to download it, and it serves every package."""

import re
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.repo.tree import Package, lock_entries, packages, text

LOCK = text(Path("requirements.lock"))


def test_every_entry_is_one_release_with_its_hashes() -> None:
    pinned = re.compile(r"[A-Za-z0-9._\[\]-]+==\S+( ; [^\\\n]+)? \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+")
    assert [entry for entry in lock_entries(LOCK).values() if not pinned.fullmatch(entry)] == []


def test_no_entry_says_where_to_download() -> None:
    assert [line for line in LOCK.splitlines() if re.search(r"://| @ |^-|^\s+--(?!hash=)", line)] == []


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.dist)
def test_the_lock_meets_what_a_package_declares(package: Package) -> None:
    entries = lock_entries(LOCK)
    for wanted in (*package.requires, *package.optional):
        if wanted.name.startswith("allmende-"):
            continue
        entry = entries.get(canonicalize_name(wanted.name))
        assert entry is not None, f"{wanted.name} is not in the lock: run ./dev lock"
        version = entry.split("==", 1)[1].split(maxsplit=1)[0]
        assert wanted.specifier.contains(version, prereleases=True), f"{wanted} against {version}: run ./dev lock"
