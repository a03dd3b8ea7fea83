"""Which tests run side by side when the suite is shared by workers (`./dev test`, or pytest -n 2), and what begins first.

A file's tests stay together and in their order: they share its fixtures. The tests that start whole labs are one unit, so that at
most one lab of ten processes runs at a time; the other worker meanwhile does what needs one process. What is long comes first.
It never decides what a test finds: each file passes alone, too. Decision record 0016.
"""

from typing import Any

import pytest

# Servers, four services, a cluster and a load for each test: two such at a time would want more than two cores.
LABS = ("tests/system/", "tests/faults/", "tests/cli/test_lab.py", "tests/cli/test_replay_lab.py", "tests/cli/test_real_lab.py")
# One service that works a minute on end: each a unit of its own, although it lies among the labs.
LONG = ("tests/system/test_helios.py::test_a_month_of_helios_",)


def unit_of(nodeid: str) -> str:
    """The name of the unit that a test belongs to: one worker runs all of it."""
    if nodeid.startswith(LONG):
        return nodeid
    if nodeid.startswith(LABS):
        return "labs"
    return nodeid.split("::", 1)[0]


def sort(items: list[pytest.Item]) -> None:
    """Put collected tests into the order in which units are handed out: labs, then what is long, then the rest as it was."""
    items.sort(key=lambda item: turn_of(item.nodeid))


def turn_of(nodeid: str) -> int:
    """When a test's unit is handed out: the lowest first."""
    if nodeid.startswith(LONG):
        return 1
    return 0 if nodeid.startswith(LABS) else 2


def scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler of pytest-xdist that hands out our units in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    units = LoadScopeScheduling(config, log)
    # What its own variants by file and by group override; those would sort by number of tests, or change the names of tests.
    units._split_scope = unit_of
    # Otherwise the units with the most tests come first, and those are the quick ones.
    config.option.loadscopereorder = False
    return units
