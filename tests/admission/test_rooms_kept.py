"""Free GPUs that a pass keeps from step to step are those that a count of everything finds (decision 0038)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.admission.model.books import Books
from allmende.admission.rules.rooms import Rooms
from allmende.proto.placement import NodeReplicas
from allmende.proto.units import PPM_WHOLE
from tests.admission.builders import CLUSTER, NOW, TERMS, an_id, claim, lab, node
from tests.admission.test_pass_properties import jobs, labs


def counted(books: Books, taken: dict[str, int], void: set[str]) -> dict[str, int]:
    """GPUs free for everybody, of each node that has any: healthy, less what is held, taken and earmarked."""
    left = {}
    for key, each in books.nodes.items():
        if each.last_seen_ms >= NOW - TERMS.silent_after_ms:
            left[each.node] = each.healthy - sum(books.on_node.get(key, {}).values()) - taken.get(each.node, 0)
    for each in books.claims_on(CLUSTER):
        for name, gpus in each.earmarks().items() if each.claim not in void else ():
            left[name] = left.get(name, 0) - gpus
    return {name: gpus for name, gpus in sorted(left.items()) if gpus > 0}


@settings(max_examples=150, deadline=None)
@given(books=labs(), data=st.data())
def test_what_is_kept_as_free_is_what_a_count_of_everything_finds(books: Books, data: st.DataObject) -> None:
    names = sorted(each.node for each in books.nodes.values())
    for number in range(data.draw(st.integers(0, 3))):
        of, where = data.draw(jobs(200 + number)), data.draw(st.sampled_from(names))
        made = claim(number, of, plan=an_id(77), placement=(NodeReplicas(where, 1),))
        books.claims[made.claim] = made
    rooms, taken, void = Rooms(books, CLUSTER, NOW, TERMS), dict[str, int](), set[str]()
    assert rooms.open() == counted(books, taken, void)
    for name in data.draw(st.lists(st.sampled_from((*names, *books.claims)), max_size=6)):
        if name in books.claims:
            before = counted(books, taken, void)
            freed = rooms.unmark(name)
            void.add(name)
            # Whoever was passed over is tried again only if this says that there is more room than before.
            assert freed == (counted(books, taken, void) != before)
        elif free := rooms.free(name, None):
            # All of it, or all but one: the edges.
            gpus = max(1, free - data.draw(st.integers(0, 1)))
            rooms.take((NodeReplicas(name, 1),), gpus, 0)
            taken[name] = taken.get(name, 0) + gpus
        assert rooms.open() == counted(books, taken, void)


def test_the_last_nodes_by_name_follow_every_report() -> None:
    books = lab((), [node(1), node(2)], {})
    half = PPM_WHOLE // 2
    assert list(books.rooms[CLUSTER].last_by_name(half)) == ["n002"]
    books.rooms[CLUSTER].report("n002", None, 0, NOW)
    assert list(books.rooms[CLUSTER].last_by_name(half)) == []
    books.rooms[CLUSTER].report("n003", None, 8, NOW)
    assert list(books.rooms[CLUSTER].last_by_name(half)) == ["n003"]
