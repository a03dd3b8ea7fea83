"""How the workers of `./dev test` share the tests out: whole labs one at a time, each file in one piece, and nothing forgotten."""

from types import SimpleNamespace
from typing import Any

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


def test_a_worker_gets_a_whole_unit_before_the_next_one() -> None:
    tests = [f"{file}::test_{number}" for file in ("tests/cli/test_lab.py", "tests/proto/test_ids.py") for number in range(4)]
    tests += ["tests/system/test_life.py::test_0", "tests/proto/test_tree.py::test_0"]
    config: Any = SimpleNamespace(option=SimpleNamespace(loadscopereorder=True), getvalue=lambda _name: ["2*popen"])
    config.getoption = config.getvalue
    units = workers.scheduler(config, SimpleNamespace(loadscopesched=lambda *_words: None))
    both = [Worker(tests), Worker(tests)]
    for worker in both:
        units.add_node(worker)
        units.add_node_collection(worker, tests)
    units.schedule()
    assert both[0].told == [[*tests[:4], tests[8]]], "the labs, in one piece"
    assert both[1].told == [tests[4:8]]
    for done in (4, 5):
        units.mark_test_complete(both[1], done)
    assert both[1].told == [tests[4:8], tests[9:]], "more before it has nothing left"


class Worker:
    """A worker as pytest-xdist's scheduler sees it; keeps what it was told to run."""

    shutting_down = False

    def __init__(self, tests: list[str]) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.told: list[list[str]] = []
        self._tests = tests

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.told.append([self._tests[number] for number in numbers])

    def shutdown(self) -> None:
        self.shutting_down = True
