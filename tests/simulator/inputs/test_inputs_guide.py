"""The guide says what the code does: its examples are read, and every fault is explained."""

import ast
import re
from pathlib import Path

from allmende.simulator.inputs.cluster_file import read_cluster
from allmende.simulator.inputs.jobs_file import COLUMNS, read_jobs
from allmende.simulator.inputs.sacct_rows import FATES
from tests.simulator.inputs.builders import value, written

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "guides" / "simulate-inputs.md").read_text(encoding="utf-8")
INPUTS = ROOT / "clients" / "simulator" / "src" / "allmende" / "simulator" / "inputs"


def example(kind: str) -> str:
    """The only example of a kind."""
    (found,) = re.findall(rf"```{kind}\n(.*?)```", GUIDE, re.DOTALL)
    return str(found)


def test_the_cluster_of_the_guide_is_read(tmp_path: Path) -> None:
    cluster = value(read_cluster(written(tmp_path, example("toml"))))
    assert (cluster.cluster, len(cluster.nodes), cluster.gpus) == ("lab", 127, 1_024)


def test_the_jobs_of_the_guide_are_read(tmp_path: Path) -> None:
    jobs = value(read_jobs(written(tmp_path, example("csv"))))
    assert [(job.job, job.gpus, job.slice_ms) for job in jobs] == [
        ("train-1", 32, 14_400_000),
        ("debug-1", 1, 300_000),
        ("sweep-1", 1, 0),
    ]


def test_every_column_and_every_common_state_is_explained() -> None:
    assert [name for name in COLUMNS if f"| `{name}` |" not in GUIDE] == []
    rare = {"SPECIAL_EXIT", "REQUEUE_FED", "REQUEUE_HOLD", "STOPPED", "SIGNALING", "STAGE_OUT", "CONFIGURING", "RESV_DEL_HOLD"}
    assert [state for state in FATES if state not in GUIDE and state not in rare] == []


def test_every_fault_is_explained() -> None:
    codes: set[str] = set()
    for path in sorted(INPUTS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            # `faults.add(..., code, sentence)` and `Cell(name, code, sentence)`.
            if isinstance(node, ast.Call) and len(node.args) > 2 and ast.unparse(node.func).endswith(("add", "Cell")):
                code = node.args[-2]
                if isinstance(code, ast.Constant) and isinstance(code.value, str):
                    codes.add(code.value)
    assert len(codes) > 40
    assert sorted(code for code in codes if f"`{code}`" not in GUIDE) == []
