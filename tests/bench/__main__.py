"""`./dev bench [NAME] [--json]`: runs the benches of this folder and prints their figures.

A bench is a file `bench_NAME.py` with a function `bench()` that returns figures by name, the unit last in the name
(`{"ticks_per_s": 21000, "commit_ms_p99": 4.1}`); what cannot be measured here has a sentence that says why instead of a number.
Standard output carries the figures alone; what a bench prints goes to standard error.
"""

import argparse
import contextlib
import importlib
import json
import os
import platform
import sys
from pathlib import Path

Figures = dict[str, float | str]


def main() -> int:
    """Exit status: 0 after the figures, 2 for a bench that does not exist. A bench that fails ends the run."""
    benches = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="./dev bench")
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"one of: {', '.join(benches) or 'none yet'}")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    wanted = parser.parse_args()
    if wanted.name and wanted.name not in benches:
        parser.error(f"no bench is called {wanted.name}")
    with contextlib.redirect_stdout(sys.stderr):
        measured = {name: _measure(name) for name in ([wanted.name] if wanted.name else benches)}
    print(json.dumps(_report(measured)) if wanted.json else _table(measured))
    return 0


def _measure(name: str) -> Figures:
    print(f"bench: {name}", file=sys.stderr)
    figures: Figures = importlib.import_module(f"tests.bench.bench_{name}").bench()
    return figures


def _report(measured: dict[str, Figures]) -> dict[str, object]:
    # Figures of two machines do not compare: each report names its own.
    machine = {"cores": os.cpu_count(), "arch": platform.machine(), "python": platform.python_version()}
    return {"machine": machine, "benches": measured}


def _table(measured: dict[str, Figures]) -> str:
    rows = [(name, figure, value) for name, figures in measured.items() for figure, value in figures.items()]
    return "\n".join(f"{name:24} {figure:32} {_cell(value)}" for name, figure, value in rows) or "no benches"


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:>16,.10g}"


if __name__ == "__main__":
    sys.exit(main())
