"""Reading a tree: digest, paths, leaves, effective shares."""

import hashlib
import random
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from allmende.proto.budget import Budget, ClusterShare
from allmende.proto.tree import covers_slices, digest, effective_share, is_whole, leaves, named_clusters, paths
from allmende.proto.units import PPM_WHOLE


def known(*rows: Budget) -> dict[str, Budget]:
    """Budgets by name."""
    return {row.budget: row for row in rows}


LAB = known(
    Budget(budget="lab"),
    Budget(budget="vision", parent="lab", share_ppm=350_000),
    Budget(budget="detection", parent="vision", share_ppm=600_000),
    Budget(budget="through", parent="lab"),
    Budget(budget="below", parent="through", share_ppm=500_000),
    Budget(budget="unset", parent="below"),
    Budget(budget="zero", parent="lab", share_ppm=0),
)

_PEOPLE = st.lists(st.sampled_from(["ann", "bo", "cy"]), max_size=2, unique=True).map(tuple)
_OWN = st.builds(ClusterShare, cluster=st.sampled_from(["c1", "c2"]), share_ppm=st.integers(0, PPM_WHOLE))
# Each field at its default as often as not.
ANY_BUDGET = st.builds(
    Budget,
    budget=st.sampled_from(["lab", "vision"]),
    parent=st.sampled_from([None, "lab"]),
    title=st.just("") | st.text(max_size=20),
    share_ppm=st.none() | st.sampled_from([0, 1, PPM_WHOLE]),
    managers=_PEOPLE,
    members=_PEOPLE,
    cluster_shares=st.just(msgspec.UNSET) | st.lists(_OWN, min_size=1, max_size=2).map(tuple),
)


@pytest.mark.parametrize(
    ("budget", "shares", "is_set"),
    [
        ("lab", (), False),
        ("detection", (350_000, 600_000), True),
        ("below", (500_000,), True),
        ("unset", (500_000,), False),
        ("zero", (0,), True),
    ],
)
def test_an_effective_share_is_the_product_of_the_path(budget: str, shares: tuple[int, ...], is_set: bool) -> None:
    assert effective_share(paths(LAB)[budget], LAB, None) == (shares, is_set)


def test_a_cluster_s_own_share_wins_over_the_general_one() -> None:
    own = (ClusterShare(cluster="c1", share_ppm=200_000), ClusterShare(cluster="c2", share_ppm=0))
    rows = known(
        Budget(budget="lab"),
        Budget(budget="a", parent="lab", share_ppm=500_000, cluster_shares=own),
        Budget(budget="b", parent="a", share_ppm=300_000),
    )
    found = {cluster: effective_share(("lab", "a", "b"), rows, cluster) for cluster in ("c1", "c2", "c3", None)}
    general = ((500_000, 300_000), True)
    assert found == {"c1": ((200_000, 300_000), True), "c2": ((0, 300_000), True), "c3": general, None: general}
    assert named_clusters(rows.values()) == ("c1", "c2")


def test_a_share_of_the_whole_changes_nothing() -> None:
    rows = known(Budget(budget="lab", share_ppm=PPM_WHOLE), Budget(budget="a", parent="lab", share_ppm=PPM_WHOLE))
    assert effective_share(("lab", "a"), rows, None) == ((), True)


def test_paths_begin_at_the_root_whatever_the_order() -> None:
    backwards = dict(reversed(list(LAB.items())))
    assert paths(backwards) == paths(LAB)
    assert paths(LAB)["unset"] == ("lab", "through", "below", "unset")
    assert leaves(LAB) == {"detection", "unset", "zero"}
    assert leaves({}) == frozenset()
    assert paths({}) == {}


@pytest.mark.parametrize(
    "rows",
    [
        (Budget(budget="a", parent="ghost"),),
        (Budget(budget="a", parent="a"),),
        (Budget(budget="lab"), Budget(budget="a", parent="b"), Budget(budget="b", parent="a"), Budget(budget="c", parent="a")),
    ],
)
def test_what_hangs_on_no_root_has_no_path(rows: tuple[Budget, ...]) -> None:
    with pytest.raises(ValueError, match="does not hang on a root"):
        paths(known(*rows))


def test_the_digest_of_golden_budgets_never_changes() -> None:
    # Stored in every revision: a change here makes every reader wait for ever.
    assert digest(()) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest(LAB.values()) == GOLDEN


GOLDEN = "aa57d56779d144da72b5f43efd58121ee2cc27c4baf4e49be326f98267b0103c"


def test_only_a_whole_revision_is_read() -> None:
    count, expected = len(LAB), digest(LAB.values())
    missing, changed = dict(LAB), dict(LAB)
    name, definition = missing.popitem()
    changed[name] = replace(definition, title="something else")
    assert is_whole(LAB, count, expected)
    assert not is_whole(missing, count, expected)
    assert not is_whole(changed, count, expected)


def test_a_field_at_its_default_leaves_the_digest_as_it_was() -> None:
    """So a field that is added later changes no digest of a tree that does not use it."""
    said = hashlib.sha256(b'{"budget":"lab"}\n').hexdigest()
    assert digest([Budget(budget="lab")]) == said


@given(ANY_BUDGET)
def test_the_digest_is_the_formula_of_its_first_day(row: Budget) -> None:
    """Spelled out slowly: what is stored in every revision since then, whatever the encoder does for speed."""
    said = {field.name: value for field in fields(Budget) if (value := getattr(row, field.name)) != field.default}
    line = msgspec.json.encode(said, order="deterministic") + b"\n"
    assert digest([row]) == hashlib.sha256(line).hexdigest()
    # Read from bytes, as readers have it: no value need be the same object as the default.
    again = msgspec.json.decode(msgspec.json.encode(row), type=Budget)
    assert digest([again]) == digest([row])


def test_a_tree_without_shares_of_clusters_keeps_its_bytes() -> None:
    """An old reader refuses a field that it does not know: it must not be there."""
    said = b'{"budget":"a","parent":"lab","title":"","share_ppm":1,"managers":[],"members":[]}'
    assert msgspec.json.encode(Budget(budget="a", parent="lab", share_ppm=1)) == said
    assert msgspec.json.decode(said, type=Budget) == Budget(budget="a", parent="lab", share_ppm=1)


@given(st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_order(chance: random.Random) -> None:
    rows = list(LAB.values())
    chance.shuffle(rows)
    assert digest(rows) == digest(LAB.values())


@given(st.sampled_from(sorted(LAB)), st.sampled_from(["title", "share_ppm", "managers", "members", "parent", "cluster_shares"]))
def test_the_digest_sees_every_field(name: str, field: str) -> None:
    other = {
        "title": "x",
        "share_ppm": 1,
        "managers": ("x",),
        "members": ("x",),
        "parent": "x",
        "cluster_shares": (ClusterShare(cluster="x", share_ppm=1),),
    }[field]
    changed = {**LAB, name: msgspec.structs.replace(LAB[name], **{field: other})}
    assert digest(changed.values()) != digest(LAB.values())


def test_the_shares_of_all_leaves_are_exact_rationals() -> None:
    total = Fraction(0)
    for leaf in leaves(LAB):
        shares, is_set = effective_share(paths(LAB)[leaf], LAB, None)
        if is_set:
            product = Fraction(1)
            for share in shares:
                product *= Fraction(share, PPM_WHOLE)
            total += product
    assert total == Fraction(21, 100)


def test_which_leaves_cover_slices() -> None:
    """Set, zero included, or the whole by itself; unset is neither."""
    alone = Budget(budget="lab")
    rows = (alone, LAB["detection"], LAB["zero"], LAB["unset"])
    assert [covers_slices(row) for row in rows] == [True, True, True, False]
