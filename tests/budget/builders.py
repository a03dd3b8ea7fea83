"""Builders of trees for tests: a short way to write them, and Hypothesis strategies for valid ones."""

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st
from msgspec.structs import replace

from allmende.proto.budget import MAX_DEPTH, Budget, ClusterShare
from allmende.proto.units import PPM_WHOLE, parse_share


def budget(name: str, parent: str | None = None, share: str | None = None, **more: object) -> Budget:
    """One budget; `share` as people write it."""
    ppm = None if share is None else parse_share(share)
    return Budget(budget=name, parent=parent, share_ppm=ppm, **more)  # type: ignore[arg-type]


def own(**shares: str) -> tuple[ClusterShare, ...]:
    """Shares of single clusters, as people write them."""
    return tuple(ClusterShare(cluster=cluster, share_ppm=parse_share(share)) for cluster, share in shares.items())


def tree(*lines: str) -> tuple[Budget, ...]:
    """A tree from lines such as `lab`, `vision < lab 35%`, `lines < vision` (an unset share)."""
    rows = []
    for line in lines:
        name, _, rest = line.partition(" < ")
        parent, _, share = rest.partition(" ")
        rows.append(budget(name, parent or None, share or None))
    return tuple(rows)


# Few short names and some at the edge of the rule: drawing from the whole pattern is slow and finds nothing more.
names = st.sampled_from([*"abcdefghijklmnop", "0", "9-9", "a_b", "x" * 63, "y" + "-" * 61 + "y", "1e5", "true", "nan"])
titles = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
people = st.lists(names, max_size=4, unique=True).map(tuple)


@st.composite
def valid_trees(draw: st.DrawFn, most: int = 14) -> tuple[Budget, ...]:
    """A valid tree, its sums drawn around the edge: siblings often sum to exactly the whole."""
    chosen = draw(st.lists(names, min_size=1, max_size=most, unique=True))
    parents, depths = _shape(draw, chosen)
    inner = set(parents.values())
    # What is left below each budget that has a share; unset budgets hand their parent's remainder on.
    left: dict[str, int] = {chosen[0]: PPM_WHOLE}
    speaks: dict[str, str] = {chosen[0]: chosen[0]}
    rows = [Budget(budget=chosen[0], title=draw(titles), managers=draw(people), members=() if len(chosen) > 1 else draw(people))]
    for name in chosen[1:]:
        above = speaks[parents[name]]
        share = draw(st.one_of(st.none(), st.just(left[above]), st.integers(0, left[above])))
        if share is None:
            speaks[name] = above
        else:
            left[above] -= share
            left[name], speaks[name] = PPM_WHOLE, name
        members = () if name in inner else draw(people)
        rows.append(Budget(budget=name, parent=parents[name], title=draw(titles), share_ppm=share, members=members))
    assert max(depths.values()) <= MAX_DEPTH
    return tuple(rows)


CLUSTERS = ("c1", "c2")


@st.composite
def clustered_trees(draw: st.DrawFn) -> tuple[Budget, ...]:
    """A valid tree in which budgets with a share have others on single clusters, their sums drawn around the edge."""
    rows = list(draw(valid_trees()))
    known = {row.budget: row for row in rows}
    for cluster in CLUSTERS:
        takes = {row.budget: draw(st.booleans()) for row in rows if row.share_ppm is not None and row.parent is not None}
        left: dict[str, int] = {}
        above = {name: _nearest(known, name) for name in takes}
        for name in takes:
            left[above[name]] = left.get(above[name], PPM_WHOLE) - (0 if takes[name] else known[name].share_ppm or 0)
        for at, row in enumerate(rows):
            if takes.get(row.budget):
                most = left[above[row.budget]]
                share = draw(st.one_of(st.just(most), st.integers(0, most)))
                left[above[row.budget]] -= share
                entry = ClusterShare(cluster=cluster, share_ppm=share)
                rows[at] = replace(row, cluster_shares=(*(row.cluster_shares or ()), entry))
    return tuple(rows)


def _nearest(known: Mapping[str, Budget], name: str) -> str:
    at = known[name].parent
    while at is not None and known[at].share_ppm is None and known[at].parent is not None:
        at = known[at].parent
    assert at is not None
    return at


def _shape(draw: st.DrawFn, chosen: Sequence[str]) -> tuple[dict[str, str], dict[str, int]]:
    parents: dict[str, str] = {}
    depths = {chosen[0]: 1}
    for number, name in enumerate(chosen[1:], start=1):
        shallow = [each for each in chosen[:number] if depths[each] < MAX_DEPTH]
        # The last one often: deep trees are where rules break.
        parents[name] = draw(st.one_of(st.just(shallow[-1]), st.sampled_from(shallow)))
        depths[name] = depths[parents[name]] + 1
    return parents, depths
