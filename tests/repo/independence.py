"""`./dev independence`: installs each service and client alone, with only what it declares, and imports all of it.

Wheels are built from the tree without the network. Each package then gets an empty environment with its own wheel, those of
ours that it declares, and the locked releases that these declare, nothing else: an import of anything undeclared fails here
as it would for whoever installs the package. It never touches .venv, and starts nothing: `__main__` is not imported.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repo.tree import ROOT, Package, files, lock_entries, packages, text

IMPORT_ALL = """
import importlib, pkgutil, sys
top = importlib.import_module(sys.argv[1])
names = [found.name for found in pkgutil.walk_packages(top.__path__, top.__name__ + ".")]
for name in names:
    if not name.endswith(".__main__"):
        importlib.import_module(name)
print(f"{sys.argv[1]} and {len(names)} modules below it")
"""


def main() -> int:
    """Exit status: 0 when every package imports alone and its wheel is whole."""
    with tempfile.TemporaryDirectory(prefix="allmende-independence-") as folder:
        wheels = _build(Path(folder, "wheels"))
        faults = [fault for package in packages() for fault in _left_out(package, wheels[package.dist])]
        alone = [package for package in packages() if package.stands_alone]
        # Two at once: installing is half waiting for the disk, and the smallest machine we promise has two cores.
        with ThreadPoolExecutor(2) as pool:
            faults += [
                fault
                for fault in pool.map(lambda package: _try(package, wheels, Path(folder, package.dist)), alone)
                if fault
            ]
    for fault in faults:
        print(f"independence: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _build(folder: Path) -> dict[str, Path]:
    sources = [f"{ROOT / package.folder}" for package in packages()]
    _run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-qq",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            f"{folder}",
            *sources,
        ]
    )
    return {canonicalize_name(wheel.name.split("-")[0]): wheel for wheel in folder.glob("*.whl")}


def _left_out(package: Package, wheel: Path) -> list[str]:
    """Files of the package (its SQL above all) that its wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    owned = [path.relative_to(package.source).as_posix() for path in files() if path.is_relative_to(package.source)]
    return [f"{package.dist}: the wheel lacks {name}" for name in owned if name not in shipped]


def _try(package: Package, wheels: dict[str, Path], folder: Path) -> str:
    """The fault, or nothing, of one package in an environment of its own."""
    _run([sys.executable, "-m", "venv", "--without-pip", f"{folder}"])
    python = str(folder / "bin" / "python")
    wanted = folder / "requirements.txt"
    wanted.write_text(_requirements(package, wheels))
    _run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "-qq",
            "--no-compile",
            "--no-deps",
            "--require-hashes",
            "-r",
            f"{wanted}",
        ]
    )
    told = []
    for check in (
        [sys.executable, "-m", "pip", "--python", python, "check"],
        [python, "-I", "-c", IMPORT_ALL, package.module],
    ):
        ran = subprocess.run(check, check=False, capture_output=True, text=True)
        if ran.returncode:
            return f"{package.dist} does not stand alone:\n{ran.stdout}{ran.stderr}"
        told.append(ran.stdout.strip())
    print(f"independence: {'; '.join(told)}", file=sys.stderr)
    return ""


def _requirements(package: Package, wheels: dict[str, Path]) -> str:
    """What the package and everything it declares need, each with its hash."""
    entries = lock_entries(text(Path("requirements.lock")))
    lines = []
    for name in sorted(_declared(package)):
        if name in wheels:
            digest = hashlib.sha256(wheels[name].read_bytes()).hexdigest()
            lines.append(f"{name} @ {wheels[name].as_uri()} --hash=sha256:{digest}\n")
        else:
            lines.append(entries[name])
    return "".join(lines)


def _declared(package: Package) -> set[str]:
    """The distributions that installing the package brings, by what each declares and for this machine."""
    ours = {each.dist: each for each in packages()}
    seen: set[tuple[str, str]] = set()
    open_ends = [Requirement(package.dist)]
    while open_ends:
        wanted = open_ends.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            # Ours from pyproject.toml as it is now; others from what the lock installed in .venv.
            declared = _declared_by_ours(ours[name], extra) if name in ours else _declared_by(name, extra)
            open_ends += declared
    return {name for name, _ in seen}


def _declared_by_ours(package: Package, extra: str) -> list[Requirement]:
    # A package of ours has one extra at most, so its optional requirements are that extra's.
    return list(package.optional if extra else package.requires)


def _declared_by(name: str, extra: str) -> list[Requirement]:
    wanted = [Requirement(line) for line in distribution(name).requires or []]
    return [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": extra})]


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
