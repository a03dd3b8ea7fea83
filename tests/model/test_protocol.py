"""The protocol's sentences hold in every state that one fault, or one timer that falls due early, may lead to (decision 0044)."""

import pytest

from tests.model.explore import explore
from tests.model.world import Plant

# A few thousand states take some 10 s on a free core; a build has two busy ones.
pytestmark = pytest.mark.timeout(180)

GANG = "a gang claims the nodes of two"
TWO = "two claim, and one more waits"
ALWAYS = {"a claim was answered: makes_room", "a claimant was granted", "an eviction was ordered"}


@pytest.mark.parametrize(
    ("scene", "also"),
    [
        (GANG, set()),
        (TWO, {"a claim was answered: room_is_coming", "a claim was answered: fits_now"}),
        ("unallocated work is in the way", set()),
    ],
)
def test_one_fault_at_any_place_breaks_nothing(scene: str, also: set[str]) -> None:
    """A message lost or repeated, a process killed after any commit, a start that fails, a job that ends by itself."""
    found = explore(scene, faults=1, waits=0, delays=0, most=5_000)
    assert found.broken is None, found.broken
    assert found.whole
    assert found.states > 500
    killed = {"an agent was killed while attempts ran", "an eviction was ordered of one that has ended"}
    assert ALWAYS | also | killed <= set(found.reached)
    print(f"{scene}: {found.states} states, {found.settled} followed to rest")


def test_a_timer_may_fall_due_while_anything_is_on_its_way() -> None:
    found = explore(TWO, faults=0, waits=1, delays=0, most=5_000)
    assert found.broken is None, found.broken
    assert found.whole
    assert set(found.reached) >= ALWAYS


@pytest.mark.parametrize(
    ("plant", "sentence"),
    [
        ("free_on_order", "no GPU is granted twice"),
        ("forgets_attempts", "no GPU is granted twice"),
        ("forgets_running", "who is said to be gone runs no more"),
        ("says_once", "admission knows who holds GPUs"),
        ("keeps_promises", "no room is promised to nobody"),
    ],
)
def test_a_planted_fault_is_found(plant: Plant, sentence: str) -> None:
    found = explore(GANG, faults=1, waits=0, delays=0, most=5_000, plant=plant, settle_each=5)
    assert found.broken is not None
    assert found.broken.sentence == sentence
    assert found.broken.way
