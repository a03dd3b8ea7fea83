"""What makes a tree of budgets valid: contract §2, with every fault named. One bad subtree never hides the faults of another.

Pure. Not in the budget service, because `allmende budgets check` must answer the same without a server. Never mends a tree.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from allmende.proto.budget import MAX_BUDGETS, MAX_CLUSTER_SHARES, MAX_DEPTH, Budget
from allmende.proto.ids import is_name
from allmende.proto.message import Problem
from allmende.proto.tree import named_clusters, share_on
from allmende.proto.units import PPM_WHOLE, Ppm, format_share

# The keys of a budget file: in `[lab.share]` nobody could tell the budget from the key (see `tree_file`).
RESERVED_NAMES = frozenset({"title", "share", "cluster_shares", "managers", "members"})
MAX_TITLE = 200
MAX_PEOPLE = 500
# One message holds one budget: what is left of 64 KiB is for the envelope and for the request that carries it.
MAX_BUDGET_BYTES = 48 * 1024
# How much of somebody else's text a sentence repeats: enough to find it, never enough to burst a reply.
_QUOTED = 80
_LISTED = 10

_encoder = msgspec.json.Encoder()


def validate(budgets: Iterable[Budget]) -> tuple[Problem, ...]:
    """Every fault of a tree; none means that it may be published.

    The budgets may be in any order and may have been built without any check. Codes: `empty_tree`, `too_many_budgets`,
    `no_root`, `several_roots`, `invalid_name`, `reserved_name`, `duplicate_budget`, `orphan`, `tree_loop`, `too_deep`,
    `share_out_of_range`, `root_share`, `shares_exceed_parent`, `members_on_inner_budget`, `too_many_people`,
    `duplicate_person`, `title_too_long`, `budget_too_large`, `too_many_cluster_shares`, `duplicate_cluster_share`,
    `cluster_share_without_general`.

    A budget that is defined twice counts with both definitions in the sums. Cost: O(budgets x depth).
    """
    rows = tuple(budgets)
    if not rows:
        return (Problem(code="empty_tree", sentence="the tree has no budgets; it needs at least a root, the organisation"),)
    if len(rows) > MAX_BUDGETS:
        return (Problem(code="too_many_budgets", sentence=f"the tree has {len(rows)} budgets; at most {MAX_BUDGETS} are allowed"),)
    family = _Family.of(rows)
    faults: list[Problem] = []
    for row in rows:
        faults.extend(_own_faults(row, family.children))
    faults.extend(_duplicates(rows))
    faults.extend(_shape(rows, family))
    faults.extend(_sums(rows, family))
    return tuple(faults)


def validate_change(before: Mapping[str, Budget], after: Mapping[str, Budget]) -> tuple[Problem, ...]:
    """`validate` of the tree `after`, at the cost of what it changes of `before`, which is valid or empty. Budgets by their names.

    Only that nothing is wrong is found out in this cheaper way; where anything may be, `validate` says what.
    """
    if before and after and len(after) <= MAX_BUDGETS and _is_sound(before, after):
        return ()
    return validate(after.values())


def _is_sound(before: Mapping[str, Budget], after: Mapping[str, Budget]) -> bool:
    """Whether no change has brought a fault into a valid tree.

    A budget's own faults depend on itself and on whether it has children. The shape depends on parents alone. A sum can
    have grown only where a changed budget, or one whose way up leads through a changed one, counts in it: the sum in which
    the changed one counts, or would count.
    """
    changed = [row for name, row in after.items() if (was := before.get(name)) is not row and was != row]
    above = {row.parent: after[row.parent] for row in changed if row.parent is not None and row.parent in after}
    inner = {row.parent for row in after.values()}
    if any(any(_own_faults(row, inner)) for row in (*changed, *above.values())):
        return False
    rows, family = tuple(after.values()), _Family(after, {}, frozenset())
    if len(before) != len(after) or any(row.budget not in before or before[row.budget].parent != row.parent for row in changed):
        family = _Family.of(rows)
        if any(_shape(rows, family)):
            return False
    touched = {_nearest_set(row.parent, family) for row in changed if row.parent is not None}
    return not any(_sums(rows, family, touched))


class _Family(NamedTuple):
    """Who is whose child. `first` holds the first definition of each name, which stands for the name as a parent."""

    first: Mapping[str, Budget]
    children: Mapping[str, Sequence[str]]
    on_loop: frozenset[str]

    @classmethod
    def of(cls, rows: Sequence[Budget]) -> "_Family":
        first: dict[str, Budget] = {}
        children: dict[str, list[str]] = {}
        for row in rows:
            first.setdefault(row.budget, row)
            if row.parent is not None:
                children.setdefault(row.parent, []).append(row.budget)
        return cls(first, children, _on_loop(first))


def _on_loop(first: Mapping[str, Budget]) -> frozenset[str]:
    # Each budget has one parent, so whoever walks up either leaves the tree or enters a circle. Every name is walked once.
    done: set[str] = set()
    found: set[str] = set()
    for start in first:
        trail: dict[str, None] = {}
        at: str | None = start
        while at is not None and at in first and at not in done and at not in trail:
            trail[at] = None
            at = first[at].parent
        if at is not None and at in trail:
            steps = list(trail)
            found.update(steps[steps.index(at) :])
        done.update(trail)
    return frozenset(found)


# ------------------------------------------------------------------------------------------------------------ one budget


def _own_faults(row: Budget, inner: Container[str | None]) -> Iterator[Problem]:
    name = quote(row.budget)
    if not is_name(row.budget):
        yield _invalid_name(f"budget {name}", row.budget)
    elif row.budget in RESERVED_NAMES:
        yield Problem(code="reserved_name", sentence=f"a budget cannot be called {name}: that word is a key of the budget file")
    if row.parent is not None and not is_name(row.parent):
        yield _invalid_name(f"the parent of budget {name}", row.parent)
    if row.share_ppm is not None and not 0 <= row.share_ppm <= PPM_WHOLE:
        yield Problem(
            code="share_out_of_range", sentence=f"budget {name}: a share lies between 0% and 100%, not {_percent(row.share_ppm)}"
        )
    if row.parent is None and row.share_ppm not in (None, PPM_WHOLE):
        yield Problem(code="root_share", sentence=f"budget {name} is the root, which is the whole: leave its share out")
    yield from _cluster_shares(name, row)
    if len(row.title) > MAX_TITLE:
        yield Problem(
            code="title_too_long", sentence=f"budget {name}: the title has {len(row.title)} characters, at most {MAX_TITLE}"
        )
    yield from _people(name, "managers", row.managers)
    yield from _people(name, "members", row.members)
    if row.members and row.budget in inner:
        sentence = f"budget {name} has children, so nobody charges it: take its members out, and let them into budgets below it"
        yield Problem(code="members_on_inner_budget", sentence=sentence)
    if (size := len(_encoder.encode(row))) > MAX_BUDGET_BYTES:
        sentence = f"budget {name} takes {size} bytes, at most {MAX_BUDGET_BYTES} fit a message: list fewer people"
        yield Problem(code="budget_too_large", sentence=sentence)


def _cluster_shares(name: str, row: Budget) -> Iterator[Problem]:
    shares = row.cluster_shares or ()
    if len(shares) > MAX_CLUSTER_SHARES:
        sentence = f"budget {name} has shares of {len(shares)} clusters, at most {MAX_CLUSTER_SHARES}"
        yield Problem(code="too_many_cluster_shares", sentence=sentence)
        return
    if shares and row.parent is None:
        yield Problem(code="root_share", sentence=f"budget {name} is the root, the whole of every cluster: leave its shares out")
    elif shares and row.share_ppm is None:
        sentence = f'budget {name} has shares of single clusters but no general one: add share = "0%" if it has none elsewhere'
        yield Problem(code="cluster_share_without_general", sentence=sentence)
    seen: set[str] = set()
    for own in shares:
        if not is_name(own.cluster):
            yield _invalid_name(f"budget {name}: one of the clusters of its shares", own.cluster)
        elif own.cluster in seen:
            sentence = f"budget {name} has two shares of cluster {quote(own.cluster)}"
            yield Problem(code="duplicate_cluster_share", sentence=sentence)
        seen.add(own.cluster)
        if not 0 <= own.share_ppm <= PPM_WHOLE:
            where = f"budget {name} on cluster {quote(own.cluster)}"
            sentence = f"{where}: a share lies between 0% and 100%, not {_percent(own.share_ppm)}"
            yield Problem(code="share_out_of_range", sentence=sentence)


def _people(name: str, role: str, people: Sequence[str]) -> Iterator[Problem]:
    if len(people) > MAX_PEOPLE:
        yield Problem(code="too_many_people", sentence=f"budget {name} lists {len(people)} {role}, at most {MAX_PEOPLE}")
        return
    seen: set[str] = set()
    for person in people:
        if not is_name(person):
            yield _invalid_name(f"budget {name}: one of its {role}", person)
        elif person in seen:
            yield Problem(code="duplicate_person", sentence=f"budget {name} lists {quote(person)} twice among its {role}")
        seen.add(person)


def _invalid_name(what: str, text: str) -> Problem:
    rule = "a name has 1 to 63 of a-z, 0-9, - and _, and begins and ends with a letter or digit"
    return Problem(code="invalid_name", sentence=f"{what} is written {quote(text)}; {rule}")


# ------------------------------------------------------------------------------------------------------------- the shape


def _shape(rows: Sequence[Budget], family: _Family) -> Iterator[Problem]:
    yield from _roots(rows)
    yield from _orphans(rows, family)
    yield from _loops(family)
    yield from _depths(family)


def _duplicates(rows: Sequence[Budget]) -> Iterator[Problem]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.budget] = counts.get(row.budget, 0) + 1
    for name, count in counts.items():
        if count > 1:
            sentence = f"budget {quote(name)} is defined {count} times; a name may be used once in the whole tree"
            yield Problem(code="duplicate_budget", sentence=sentence)


def _roots(rows: Sequence[Budget]) -> Iterator[Problem]:
    roots = list(dict.fromkeys(row.budget for row in rows if row.parent is None))
    if not roots:
        yield Problem(code="no_root", sentence="every budget names a parent; one, the organisation, must have none")
    if len(roots) > 1:
        sentence = f"a tree has one root, the organisation; these have no parent: {_listed(roots)}"
        yield Problem(code="several_roots", sentence=sentence)


def _orphans(rows: Sequence[Budget], family: _Family) -> Iterator[Problem]:
    for row in rows:
        if row.parent is not None and row.parent not in family.first:
            sentence = f"budget {quote(row.budget)} hangs on {quote(row.parent)}, which does not exist"
            yield Problem(code="orphan", sentence=sentence)


def _loops(family: _Family) -> Iterator[Problem]:
    left = set(family.on_loop)
    while left:
        # The smallest name first, so that the sentence does not depend on the order of the budgets.
        start = min(left)
        ring = [start]
        while (step := family.first[ring[-1]].parent) is not None and step != start:
            ring.append(step)
        left.difference_update(ring)
        sentence = f"the parents run in a circle: {_listed([*ring, start], ' > ')}"
        yield Problem(code="tree_loop", sentence=sentence)


def _depths(family: _Family) -> Iterator[Problem]:
    # Orphans begin a tree of their own here: what lies below them is judged too. A loop has no depth.
    starts = [name for name, row in family.first.items() if row.parent is None or row.parent not in family.first]
    seen: set[str] = set()
    level, depth = starts, 1
    while level:
        seen.update(level)
        below = [child for name in level for child in dict.fromkeys(family.children.get(name, ())) if child not in seen]
        level, depth = list(dict.fromkeys(below)), depth + 1
        if depth == MAX_DEPTH + 1:
            for name in level:
                sentence = f"budget {quote(name)} lies {depth} levels deep (the root is level 1); at most {MAX_DEPTH} are allowed"
                yield Problem(code="too_deep", sentence=sentence)
            return


# ------------------------------------------------------------------------------------------------------------ the shares


def _sums(rows: Sequence[Budget], family: _Family, of: Container[str] | None = None) -> Iterator[Problem]:
    """Contract §2: siblings sum to at most the whole; those below an unset budget count in the nearest set ancestor's sum.

    The same on every cluster: who counts in which sum does not depend on the cluster, only how much. `of`: only these sums.
    """
    counted: dict[str, list[Budget]] = {}
    nearest: dict[str, str] = {}
    for row in rows:
        if row.share_ppm is not None and row.parent is not None:
            if (ancestor := nearest.get(row.parent)) is None:
                ancestor = nearest[row.parent] = _nearest_set(row.parent, family)
            if of is None or ancestor in of:
                counted.setdefault(ancestor, []).append(row)
    for ancestor, shares in counted.items():
        for cluster in (None, *named_clusters(shares)):
            total = sum(share_on(row, cluster) or 0 for row in shares)
            if total > PPM_WHOLE:
                parts = [_part(row, ancestor, cluster) for row in shares]
                where = "" if cluster is None else f" on cluster {quote(cluster)}"
                sentence = f"the shares below {quote(ancestor)}{where} sum to {_percent(total)}, more than 100%: {_listed(parts)}"
                yield Problem(code="shares_exceed_parent", sentence=sentence[:1_000])


def _nearest_set(name: str, family: _Family) -> str:
    """The nearest budget from `name` upwards that has a share or ends the path; in a circle of unset ones, its smallest name."""
    passed: set[str] = set()
    at = name
    while at in family.first:
        row = family.first[at]
        if row.share_ppm is not None or row.parent is None:
            return at
        if at in passed:
            return min(passed & family.on_loop)
        passed.add(at)
        at = row.parent
    return at


def _part(row: Budget, ancestor: str, cluster: str | None) -> str:
    through = f" (through {quote(row.parent or '')}, whose share is unset)" if row.parent != ancestor else ""
    return f"{quote(row.budget)} {_percent(share_on(row, cluster) or 0)}{through}"


def _percent(ppm: Ppm) -> str:
    return f"-{format_share(-ppm)}" if ppm < 0 else format_share(ppm)


def quote(text: str) -> str:
    """The text as a sentence repeats it: quoted, cut, on one line."""
    return repr(text if len(text) <= _QUOTED else text[: _QUOTED - 3] + "...")


def _listed(parts: Sequence[str], between: str = ", ") -> str:
    # A sentence has at most 1,000 characters: the first few say where to look, and a name that is no name is cut.
    parts = [part if len(part) <= 200 else part[:197] + "..." for part in parts]
    if len(parts) <= _LISTED and sum(map(len, parts)) <= 700:
        return between.join(parts)
    few = parts[: max(1, min(_LISTED, 700 // max(map(len, parts))))]
    return between.join(few) + f" and {len(parts) - len(few)} more"
