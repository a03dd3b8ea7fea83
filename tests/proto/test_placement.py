"""Gang placement: whole or not at all, packed, and the same whatever the order of the nodes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto.placement import NodeReplicas, Room, fits, place


@st.composite
def rooms(draw: st.DrawFn) -> list[Room]:
    """Up to 8 nodes of 8 GPUs, often quite full or quite empty."""
    frees = draw(st.lists(st.one_of(st.sampled_from([0, 1, 7, 8]), st.integers(0, 8)), max_size=8))
    return [Room(f"n{number}", free, 8, draw(st.sampled_from([0, 10, 20]))) for number, free in enumerate(frees)]


gangs = st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 3, 4, 7, 8]))


@given(rooms(), gangs, st.sampled_from([0, 10, 15]))
def test_a_gang_is_placed_whole_or_not_at_all(nodes: list[Room], gang: tuple[int, int], ends_ms: int) -> None:
    replicas, gpus = gang
    placed = place(nodes, replicas, gpus, ends_ms)
    most = sum(room.free // gpus for room in nodes)
    assert fits(nodes, replicas, gpus) == (placed is not None) == (most >= replicas)
    if placed is not None:
        free = {room.node: room.free for room in nodes}
        assert sum(each.replicas for each in placed) == replicas
        assert len({each.node for each in placed}) == len(placed)
        assert all(each.replicas > 0 and each.replicas * gpus <= free[each.node] for each in placed)


@given(rooms(), gangs, st.sampled_from([0, 10, 15]), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(
    nodes: list[Room], gang: tuple[int, int], ends_ms: int, chance: random.Random
) -> None:
    shuffled = list(nodes)
    chance.shuffle(shuffled)
    assert place(shuffled, *gang, ends_ms) == place(nodes, *gang, ends_ms)


@given(rooms(), gangs)
def test_whole_free_nodes_are_broken_last(nodes: list[Room], gang: tuple[int, int]) -> None:
    replicas, gpus = gang
    placed = place(nodes, replicas, gpus)
    if placed is None:
        return
    used = {each.node for each in placed}
    free = {room.node: room.free for room in nodes}
    # Packing: whoever was left out although it fits has at least as many free GPUs as everybody taken.
    for room in nodes:
        if room.node not in used and room.free >= gpus:
            assert all(free[name] <= room.free for name in used)


N = NodeReplicas
CASES: dict[str, tuple[list[Room], int, int, int, tuple[NodeReplicas, ...] | None]] = {
    "the edge: exactly enough": ([Room("a", 8, 8), Room("b", 8, 8)], 2, 8, 0, (N("a", 1), N("b", 1))),
    "one GPU too few": ([Room("a", 8, 8), Room("b", 7, 8)], 2, 8, 0, None),
    "fifteen free GPUs in pieces hold no replica of sixteen": ([Room("a", 8, 8), Room("b", 8, 8)], 1, 16, 0, None),
    "a part goes to the fullest node that fits": ([Room("a", 8, 8), Room("b", 2, 8), Room("c", 1, 8)], 1, 2, 0, (N("b", 1),)),
    "a whole node goes to an empty one": ([Room("a", 7, 8), Room("b", 8, 8)], 1, 8, 0, (N("b", 1),)),
    "among equals the nearest slice end": (
        [Room("a", 4, 8, 0), Room("b", 4, 8, 90), Room("c", 4, 8, 200)],
        1,
        4,
        100,
        (N("b", 1),),
    ),
    "then the name": ([Room("b", 4, 8), Room("a", 4, 8)], 1, 4, 0, (N("a", 1),)),
    "several replicas share a node": ([Room("a", 8, 8), Room("b", 4, 8)], 3, 4, 0, (N("b", 1), N("a", 2))),
    "no node at all": ([], 1, 1, 0, None),
}


@pytest.mark.parametrize("sentence", CASES)
def test_a_gang_is_placed(sentence: str) -> None:
    nodes, replicas, gpus, ends_ms, expected = CASES[sentence]
    assert place(nodes, replicas, gpus, ends_ms) == expected
