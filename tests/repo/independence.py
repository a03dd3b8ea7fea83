"""`./dev independence`: installs each service and client alone, with only what it declares, and imports all of it.

Wheels are built from the tree without the network. Each package then gets an empty environment with its own wheel, those
of ours that it declares, and the locked releases that these declare, nothing else: an import of anything undeclared fails
here as it would for whoever installs the package. It never touches .venv, and starts nothing: no `__main__` is imported.
"""

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
"""


def main() -> int:
    """Exit status: 0 when every package imports alone and its wheel is whole."""
    with tempfile.TemporaryDirectory(prefix="allmende-independence-") as folder:
        wheels = _wheels(Path(folder, "wheels"))
        faults = [fault for package in packages() for fault in _left_out(package, wheels[package.dist])]
        alone = [package for package in packages() if package.stands_alone]
        # Two at once: installing is half waiting for the disk, and the smallest machine we promise has two cores.
        with ThreadPoolExecutor(2) as pool:
            tried = pool.map(lambda package: _try(package, wheels, Path(folder, package.dist)), alone)
            faults += [fault for fault in tried if fault]
    for fault in faults:
        print(f"independence: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _wheels(folder: Path) -> dict[str, Path]:
    """A wheel for each package of ours and for each locked release that any of them declares, by name."""
    sources = [f"{ROOT / package.folder}" for package in packages()]
    _pip("wheel", "-w", f"{folder}", "--no-index", "--no-deps", "--no-build-isolation", *sources)
    entries = lock_entries(text(Path("requirements.lock")))
    needed = set().union(*(_declared(package) for package in packages())) - {package.dist for package in packages()}
    wanted = folder / "requirements.txt"
    wanted.write_text("".join(entries[name] for name in sorted(needed)))
    # The hashes are checked here, once. nkeys is built from source, with the lock's setuptools.
    _pip("wheel", "-w", f"{folder}", "--require-hashes", "--no-deps", "--no-build-isolation", "-r", f"{wanted}")
    return {canonicalize_name(wheel.name.split("-")[0]): wheel for wheel in folder.glob("*.whl")}


def _left_out(package: Package, wheel: Path) -> list[str]:
    """Files of the package (its SQL above all) that its wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    owned = [path.relative_to(package.source).as_posix() for path in files() if path.is_relative_to(package.source)]
    return [f"{package.dist}: the wheel lacks {name}" for name in owned if name not in shipped]


def _try(package: Package, wheels: dict[str, Path], folder: Path) -> str:
    """The fault, or nothing, of one package in an environment of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = f"{folder / 'bin' / 'python'}"
    chosen = [f"{wheels[name]}" for name in sorted(_declared(package))]
    _pip("--python", python, "install", "--no-index", "--no-deps", "--no-compile", *chosen)
    # pip check: the ranges of all of them agree with the lock.
    ranges = [sys.executable, "-m", "pip", "--python", python, "check"]
    for check in (ranges, [python, "-I", "-c", IMPORT_ALL, package.module]):
        ran = subprocess.run(check, check=False, capture_output=True, text=True)
        if ran.returncode:
            return f"{package.dist} does not stand alone:\n{ran.stdout}{ran.stderr}"
    print(f"independence: {package.dist} stands alone", file=sys.stderr)
    return ""


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


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments, "-qq"], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
