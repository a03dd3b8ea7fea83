"""The budget file: what people write, what each mistake is answered, and back without loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto.budget import Budget
from allmende.proto.tree_file import MAX_FILE_BYTES, PIECE_BYTES, read_tree, split, write_tree
from tests.budget.builders import budget, clustered_trees, own, tree, valid_trees

EXAMPLE = """
# Shares of the lab, agreed on in May.
[lab]
title = "The whole lab"
managers = ["ada"]

[lab.vision]
share = "35%"

[lab.vision.detection]
share = 0.6
members = ["bob", "eve"]

[lab.vision.tracking]      # no share yet: it covers no slice
members = ["kim"]

[lab.language]
share = "0%"
"""


def test_the_example_reads_as_it_looks() -> None:
    assert read_tree(EXAMPLE) == (
        (
            budget("lab", title="The whole lab", managers=("ada",)),
            budget("vision", "lab", "35%"),
            budget("detection", "vision", "60%", members=("bob", "eve")),
            budget("tracking", "vision", members=("kim",)),
            budget("language", "lab", "0%"),
        ),
        (),
    )


def check(text: bytes | str, *expected: str) -> None:
    """`expected`: each fault as `code: words of its sentence`, in the order of the answer."""
    faults = read_tree(text).faults
    assert [fault.code for fault in faults] == [each.partition(": ")[0] for each in expected], faults
    for fault, each in zip(faults, expected, strict=True):
        assert each.partition(": ")[2] in fault.sentence
        assert len(fault.sentence) <= 1_000


CASES: dict[str, tuple[bytes | str, tuple[str, ...]]] = {
    "an editor's byte order mark is no fault": (b"\xef\xbb\xbf[lab]\n", ()),
    "lines may end as on Windows": ("[lab]\r\n[lab.a]\r\nshare = '10%'\r\n", ()),
    "an empty file": ("", ("empty_tree: ",)),
    "broken TOML is placed by line and column": ("[lab]\nshare = \n", ("malformed_toml: line 2, column 9",)),
    "a number of more digits than Python reads": ("[lab]\nshare = " + "9" * 5_000 + "\n", ("malformed_toml",)),
    "a number of more digits than Python writes": (f"[lab]\n[lab.a]\nshare = 0x{'f' * 5_000}\n", ("invalid_share: share = 0xfff",)),
    "a name of thousands of letters": (f"[{'9' * 5_000}]\n[lab]\n", ("invalid_name", "several_roots")),
    "a table declared twice": ("[lab]\n[lab.a]\n[lab.a]\n", ("malformed_toml: line 3",)),
    "no text at all": (b"[lab]\ntitle = '\xff'\n", ("not_utf8: byte 16",)),
    "a misspelt key": ("[lab]\n[lab.a]\nshares = '10%'\n", ("unknown_key: 'shares' in [lab.a]",)),
    "a key outside every table": ("share = '10%'\n[lab]\n", ("unknown_key: 'share' at the top",)),
    "a list of tables": (
        "[lab]\n[[lab.a]]\nshare = '1%'\n",
        ("wrong_type: 'a' is a list of tables; a budget is one table, [lab.a]",),
    ),
    "a table where a share belongs": ("[lab]\n[lab.share]\n", ("wrong_type: [lab]: share must be text",)),
    "members as one text": ("[lab]\nmembers = 'ada'\n", ("wrong_type: [lab]: members must be a list",)),
    "members that are numbers": ("[lab]\nmembers = [1.5]\n", ("wrong_type: members",)),
    "a title that is a number": ("[lab]\ntitle = 1.5\n", ("wrong_type: title",)),
    "a share that is a switch": ("[lab]\n[lab.a]\nshare = true\n", ("wrong_type: [lab.a]: share must be text",)),
    "two roots": ("[lab]\n[other]\n", ("several_roots: lab, other",)),
    "one name in two places": ("[lab]\n[lab.a.x]\n[lab.b.x]\n", ("duplicate_budget: 'x'",)),
    "every fault is named, of writing and of meaning": (
        "[lab]\nboss = 'ada'\n[lab.a]\nshare = '70%'\n[lab.b]\nshare = '70%'\n[lab.c]\nshare = 'much'\n[lab.C]\n",
        ("unknown_key: boss", "invalid_share: [lab.c]", "invalid_name: 'C'", "shares_exceed_parent: 140%"),
    ),
    "an unreadable share accuses nobody else": (
        "[lab]\n[lab.a]\nshare = '60%'\n[lab.b]\nshare = 40\n[lab.b.x]\nshare = '90%'\n",
        ("invalid_share: [lab.b]: share = 40 is ambiguous",),
    ),
    "brackets without end": ("[lab]\ntitle = " + "[" * 50_000, ("nested_too_deep: ",)),
    "tables without end": (f"[{'.'.join(f'a{n}' for n in range(400))}]", ("nested_too_deep: ", "too_deep: a8")),
    "a file that is no budget file": ("#" * (MAX_FILE_BYTES + 1), ("file_too_large: ",)),
}


@pytest.mark.parametrize("sentence", CASES)
def test_a_file_is_judged(sentence: str) -> None:
    text, expected = CASES[sentence]
    check(text, *expected)


@pytest.mark.parametrize(
    ("written", "ppm"),
    [
        ('"35%"', 350_000),
        ('"0.35"', 350_000),
        ("0.35", 350_000),
        ('"0%"', 0),
        ('"100%"', 1_000_000),
        ('"0.0001%"', 1),
        ("0.000001", 1),
    ],
)
def test_br_048_a_share_is_stored_exactly(written: str, ppm: int) -> None:
    read = read_tree(f"[lab]\n[lab.vision]\nshare = {written}\n")
    assert read.faults == ()
    assert read.budgets[1].share_ppm == ppm


@pytest.mark.parametrize(
    "written",
    [
        '"35"',
        "35",
        '"35%%"',
        '"-5%"',
        '"35,0%"',
        '"1e99"',
        "1e99",
        '"135%"',
        "-0.1",
        "1.1",
        "nan",
        "inf",
        '""',
        '"35%\\n"',
        '"0.0000001"',
        "1",
    ],
)
def test_br_048_a_share_that_cannot_be_read_is_refused_and_never_zero(written: str) -> None:
    check(f"[lab]\n[lab.vision]\nshare = {written}\n", "invalid_share: [lab.vision]")


def test_br_050_unset_and_zero_stay_apart_through_a_file() -> None:
    rows = tree("lab", "x < lab", "y < lab 0%")
    text = write_tree(rows)
    assert 'share = "0%"' in text
    assert [row.share_ppm for row in read_tree(text).budgets] == [None, None, 0]


@given(valid_trees())
def test_write_and_read_lose_nothing(rows: tuple[Budget, ...]) -> None:
    read = read_tree(write_tree(rows))
    assert read.faults == ()
    assert sorted(read.budgets, key=lambda row: row.budget) == sorted(rows, key=lambda row: row.budget)


@given(valid_trees())
def test_a_written_file_is_written_the_same_again(rows: tuple[Budget, ...]) -> None:
    text = write_tree(rows)
    assert write_tree(read_tree(text.encode()).budgets) == text


@given(st.one_of(st.text(), st.binary(), st.lists(st.sampled_from(EXAMPLE.split()), max_size=30).map("\n".join)))
def test_whatever_stands_in_a_file_is_answered(content: bytes | str) -> None:
    read = read_tree(content)
    assert read.faults or read.budgets
    assert all(len(fault.sentence) <= 1_000 for fault in read.faults)


def test_shares_of_clusters_read_as_they_look() -> None:
    text = '[lab]\n[lab.a]\nshare = "40%"\ncluster_shares = { mars = "0%", jupiter = "20.5%" }\n'
    rows = (budget("lab"), budget("a", "lab", "40%", cluster_shares=own(jupiter="20.5%", mars="0%")))
    assert read_tree(text) == (rows, ())
    assert read_tree(write_tree(rows)) == (rows, ())
    check('[lab]\n[lab.a]\nshare = "40%"\ncluster_shares = "20%"', "wrong_type: cluster_shares must be a table of clusters")
    check('[lab]\n[lab.a]\nshare = "40%"\ncluster_shares = { c1 = 20 }', "invalid_share: [lab.a.cluster_shares.c1]")
    check('[lab]\n[lab.a]\ncluster_shares = { c1 = "20%" }', "cluster_share_without_general: 'a'")


@given(clustered_trees())
def test_shares_of_clusters_are_not_lost(rows: tuple[Budget, ...]) -> None:
    assert set(read_tree(write_tree(rows)).budgets) == set(rows)


def test_an_invalid_tree_is_not_written() -> None:
    with pytest.raises(ValueError, match="hangs on 'ghost'"):
        write_tree(tree("lab", "a < ghost"))


def test_pieces_fit_a_message_and_lose_nothing() -> None:
    rows = tuple(budget(f"b{number}", "lab", members=tuple(f"{n:063d}" for n in range(200))) for number in range(30))
    pieces = list(split(rows))
    assert [row for piece in pieces for row in piece] == list(rows)
    assert len(pieces) > 5
    small = list(split(tree("lab", *(f"b{number} < lab" for number in range(2_500)))))
    assert max(map(len, small)) <= 1_000
    assert PIECE_BYTES < 64 * 1024
    assert list(split(())) == [()]
