"""The whole demo: 60 seconds, seed 1, 1,024 GPUs. Its figures beside the bounds that it has to meet on two cores.

`met` is 1 when every bound is met: occupancy after the first hour of lab time, jobs submitted, and the five zeros. Whoever runs
this decides what follows: a machine that does something else besides is no fault of the demo.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SECONDS = 60
SEED = 1
# Starting and judging take 15 s; a machine that needs five times that measures something else.
TIMEOUT_S = SECONDS + 75
OCCUPANCY_MIN = 0.95
JOBS_MIN = 2_000
MUST_BE_ZERO = ("evictions_unexplained", "slice_violations", "ledger_difference_gpu_ms", "postings_lost", "postings_duplicated")


def bench() -> dict[str, float]:
    """Figures by their stable names; waits in seconds of lab time as `wait_CLASS_s_PERCENTILE`; bounds as `NAME_min` or `_max`."""
    figures = run()
    flat: dict[str, float] = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    for name, waits in figures["waits_s"].items():
        flat |= {f"wait_{name}_s_{percentile}": value for percentile, value in waits.items() if value is not None}
    bounds: dict[str, float] = {"occupancy_min": OCCUPANCY_MIN, "jobs_submitted_min": JOBS_MIN}
    bounds |= {f"{name}_max": 0 for name in MUST_BE_ZERO}
    return flat | bounds | {"met": int(is_met(figures))}


def is_met(figures: dict[str, Any]) -> bool:
    """True when every bound is met."""
    zeros = all(figures[name] == 0 for name in MUST_BE_ZERO)
    return zeros and (figures["occupancy"] or 0) >= OCCUPANCY_MIN and figures["jobs_submitted"] >= JOBS_MIN


def run() -> dict[str, Any]:
    """Run the demo. Its screen goes to standard error; a demo that breaks a promise ends with 1 and still has figures."""
    with tempfile.TemporaryDirectory(prefix="allmende-bench-") as folder:
        file = Path(folder) / "out.json"
        options = ["--seconds", str(SECONDS), "--seed", str(SEED), "--json", str(file)]
        command = [sys.executable, "-m", "allmende.cli", "demo", *options]
        done = subprocess.run(command, stdout=sys.stderr, timeout=TIMEOUT_S, check=False)
        if not file.exists():
            raise RuntimeError(f"the demo made no figures; exit code {done.returncode}")
        figures: dict[str, Any] = json.loads(file.read_bytes())
        return figures


if __name__ == "__main__":
    print(json.dumps(bench(), indent=2))
