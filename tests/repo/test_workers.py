"""What the workers of `./dev test` share out: each name in tests/workers.py is one of a test that exists."""

import pytest

from tests import workers
from tests.repo.tree import files, text

MONTH = "tests/system/test_helios.py::test_a_month_of_helios_in_order"


@pytest.mark.parametrize("start", [*workers.LABS, *workers.LONG])
def test_what_is_named_exists(start: str) -> None:
    file, _, name = start.partition("::")
    found = [path for path in files() if str(path).startswith(file) and path.name.startswith("test_")]
    assert found
    assert f"def {name}" in text(found[0]) if name else True


@pytest.mark.parametrize(
    ("nodeid", "unit", "turn"),
    [
        ("tests/system/test_life.py::test_a", "labs", 0),
        ("tests/faults/test_kill_servers.py::test_a", "labs", 0),
        ("tests/cli/test_lab.py::test_a[x::y]", "labs", 0),
        ("tests/cli/test_words.py::test_a", "tests/cli/test_words.py", 2),
        (MONTH, MONTH, 1),
        ("tests/system/test_helios.py::test_a_made_day", "labs", 0),
        ("tests/proto/test_ids.py::test_a[x::y]", "tests/proto/test_ids.py", 2),
    ],
)
def test_a_test_has_its_unit_and_its_turn(nodeid: str, unit: str, turn: int) -> None:
    assert (workers.unit_of(nodeid), workers.turn_of(nodeid)) == (unit, turn)
