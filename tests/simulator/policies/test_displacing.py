"""Victims are few, of the lowest level, new, and each of them needed."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.simulator.policies.displacing import Candidate, displace
from allmende.simulator.policies.room import Shape


class Case(NamedTuple):
    sentence: str
    shape: str
    free: dict[str, int]
    candidates: list[Candidate]
    victims: set[str] | None
    most: dict[str, int] | None = None


def one(name: str, level: int = 0, at: int = 0, **gpus: int) -> Candidate:
    return Candidate(name, level, at, gpus)


CASES = [
    Case("nobody, where it fits", "1x8", {"n0": 8}, [one("a", n1=8)], set()),
    Case("nobody can help", "1x8", {"n0": 3, "n1": 0}, [one("a", n0=4), one("b", n1=7)], None),
    Case("what is free counts", "1x8", {"n0": 4, "n1": 0}, [one("a", n0=4), one("b", n1=8, at=-9)], {"a"}),
    Case("the newest", "1x8", {"n0": 0, "n1": 0}, [one("old", n0=8, at=1), one("new", n1=8, at=2)], {"new"}),
    Case("the newest but on whole nodes", "1x8", {"n0": 0, "n1": 2}, [one("old", n0=8, at=1), one("new", n1=2, at=2)], {"old"}),
    Case("the lowest", "1x8", {"n0": 0, "n1": 0}, [one("low", n0=8), one("high", 1, 9, n1=8)], {"low"}),
    Case("rather one than two", "1x8", {"n0": 0, "n1": 0}, [one("a", n0=8), one("b", n1=4, at=1), one("c", n1=4, at=2)], {"a"}),
    Case("rather a gang than its parts", "2x8", {"n0": 0, "n1": 0, "n2": 0},
         [one("gang", n0=8, n1=8), one("a", n2=8, at=5), one("b", n1=0, at=6)], {"gang"}),
    Case("a gang is sent away whole for one", "1x8", {"n0": 0, "n1": 0}, [one("gang", n0=8, n1=8)], {"gang"}),
    Case("only as much of a node as may be used", "1x8", {"n0": 0, "n1": 0}, [one("a", n0=8), one("b", n1=8, at=1)], {"a"},
         {"n0": 8, "n1": 7}),
    Case("only on its own nodes", "1x8", {"n0": 0, "n1": 0}, [one("a", n0=8), one("b", n1=8, at=1)], {"a"}, {"n0": 8}),
]  # fmt: skip


def shape(text: str) -> Shape:
    replicas, gpus = text.split("x")
    return Shape(int(replicas), int(gpus), None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sentence)
def test_victims(case: Case) -> None:
    plan = displace(shape(case.shape), case.free, case.most or dict.fromkeys(case.free, 8), case.candidates)
    assert (None if plan is None else set(plan.victims)) == case.victims


@given(
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1))
    ),
    st.builds(Shape, st.integers(1, 4), st.integers(1, 4), st.none()),
)
def test_it_fits_afterwards_and_not_with_one_fewer(
    free: list[int], held: list[tuple[int, int, dict[str, int]]], gang: Shape
) -> None:
    rooms = dict(zip("abc", free, strict=True))
    candidates = [Candidate(f"{number}", level, at, gpus) for number, (level, at, gpus) in enumerate(held)]
    by_name = {each.attempt: each for each in candidates}
    plan = displace(gang, rooms, dict.fromkeys("abc", 99), candidates)

    def slots(victims: set[str]) -> int:
        gpus = {node: count + sum(by_name[each].gpus.get(node, 0) for each in victims) for node, count in rooms.items()}
        return sum(count // gang.gpus_per_replica for count in gpus.values())

    if plan is None:
        assert slots(set(by_name)) < gang.replicas
        return
    victims = set(plan.victims)
    assert len(victims) == len(plan.victims)
    assert slots(victims) >= gang.replicas
    assert all(slots(victims - {each}) < gang.replicas for each in victims)
    assert sum(part.replicas for part in plan.placement) == gang.replicas
    for part in plan.placement:
        gpus = rooms[part.node] + sum(by_name[each].gpus.get(part.node, 0) for each in victims)
        assert part.replicas * gang.gpus_per_replica <= gpus
