"""A share is asked for at the command line and answered there, beside the figures. One lab; the tests run in their order."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from allmende.cli.commands import proposal_figures, proposals
from allmende.cli.commands.tree import WholeTree
from allmende.cli.errors import CommandFailed, Exit
from allmende.proto.budget import Rejected
from allmende.proto.message import Problem
from allmende.proto.proposals import Proposal, ProposalReply, ShareProposed
from tests.budget.builders import budget, own, tree
from tests.cli.terminal import VISION, Terminal, lab_with


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with lab_with(tmp_path_factory.mktemp("proposals"), VISION, "ada", "bob", "mia") as terminal:
        yield terminal


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def asked(terminal: Terminal, user: str, budget: str, share: str) -> str:
    said = terminal.type("budgets", "propose", budget, "--share", share, "--text", "a larger set", "--json", user=user)
    assert said.code == 0, said
    return str(said.json["proposed"]["proposal"])


@needs_linux
@pytest.mark.timeout(120)
def test_asked_seen_beside_the_figures_and_given(terminal: Terminal) -> None:
    refused = terminal.type("budgets", "propose", "detection", "--share", "41%", "--text", "mine", user="bob")
    assert (refused.code, "may not ask for 'detection'" in refused.err, "[not_concerned]" in refused.err) == (1, True, True)
    one = asked(terminal, "ada", "detection", "41%")
    (seen,) = terminal.type("budgets", "proposals", "--to-decide", "--json", user="mia").json["proposals"]
    assert seen["proposal"]["proposed"]["proposal"] == one
    assert (seen["share_now_ppm"], seen["left_over_ppm"], seen["left_over_after_ppm"]) == (350_000, 50_000, -10_000)
    table = terminal.type("budgets", "proposals", "--to-decide", user="mia")
    assert [word in table.out for word in (one[-8:], "35%", "41%", "5%", "ada", "a larger set")] == [True] * 6, table
    full = terminal.type("budgets", "proposals", one[-8:], user="mia")
    assert "left over: 5%, with what is asked -1%" in full.out
    assert "tracking: 60%" in full.out
    assert "GPU-h of" in full.out
    no_room = terminal.type("budgets", "accept", one[-8:], user="mia")
    assert (no_room.code, "[shares_exceed_parent]" in no_room.err) == (1, True)
    given = terminal.type("budgets", "accept", one[-8:], "tracking=59%", "--reason", "until May", user="mia")
    assert given.out.startswith("accepted: revision 2 is in force\n"), given
    assert "left over: 0%" in given.out
    shares = {each["budget"]: each.get("share_ppm") for each in terminal.type("budgets", "--json").json["budgets"]}
    assert (shares["detection"], shares["tracking"]) == (410_000, 590_000)


@needs_linux
@pytest.mark.timeout(120)
def test_declined_taken_back_and_listed_for_ever(terminal: Terminal) -> None:
    one = asked(terminal, "ada", "detection", "50%")
    again = terminal.type("budgets", "propose", "detection", "--share", "51%", "--text", "more", user="ada")
    assert (again.code, "[proposal_open]" in again.err) == (1, True)
    assert terminal.type("budgets", "decline", one[-8:], "--reason", "no room before May", user="mia").code == 0
    late = terminal.type("budgets", "accept", one, user="mia")
    assert (late.code, "was declined by 'mia' before: no room before May" in late.err) == (1, True)
    two = asked(terminal, "ada", "detection", "45%")
    assert terminal.type("budgets", "take-back", two[-8:], user="ada").code == 0
    assert terminal.type("budgets", "proposals").out.strip() == "nobody asks for a share"
    mine = terminal.type("budgets", "proposals", "--mine", user="ada").out
    assert [word in mine for word in ("accepted", "declined", "withdrawn", "mia: no room before May")] == [True] * 4, mine
    unknown = terminal.type("budgets", "accept", "zzzz", user="mia")
    assert (unknown.code, "there is no proposal 'zzzz'" in unknown.err) == (1, True)


@needs_linux
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("propose", "detection", "--share", "41", "--text", "x"), "41% if that is meant"),
        (("accept", "0gtfa2zz", "tracking"), "is not NAME=SHARE"),
        (("accept", "ab", "tracking=1%"), "four of its last letters"),
        (("proposals", "--budget", "a.b"), "is not a name"),
    ],
)
def test_what_is_typed_wrong_is_told(terminal: Terminal, words: tuple[str, ...], sentence: str) -> None:
    said = terminal.type("budgets", *words, user="ada")
    assert (said.code, sentence in said.err) == (2, True), said


# ------------------------------------------------------------------------------------------------------------------- the figures

TREE = tree("lab", "d < lab 35%", "u < lab", "x < d 20%", "y < d 70%", "v < u 15%", "w < u")


@pytest.mark.parametrize(("parent", "left"), [("lab", 500_000), ("u", 500_000), ("d", 100_000), ("x", 1_000_000), ("ghost", None)])
def test_what_is_left_over_of_a_parent(parent: str, left: int | None) -> None:
    assert proposal_figures.left_over({row.budget: row for row in TREE}, parent) == left


def wish(name: str, parent: str, share: int) -> Proposal:
    asked_for = ShareProposed(
        proposal="0" * 26,
        budget=name,
        parent=parent,
        author="ada",
        share_ppm=share,
        share_before_ppm=None,
        text="why",
        proposed_at_ms=0,
        tree_revision=1,
        managers=(),
    )
    return Proposal(number=1, proposed=asked_for)


def test_what_is_unknown_is_not_zero() -> None:
    whole = WholeTree(revision=3, author="ada", reason="", budgets=TREE)
    unset = proposal_figures.beside(wish("w", "u", 100_000), whole, ())
    assert (unset.share_now_ppm, unset.left_over_ppm, unset.left_over_after_ppm) == (None, 500_000, 400_000)
    gone = proposal_figures.beside(wish("ghost", "void", 1), whole, ())
    assert (gone.share_now_ppm, gone.left_over_ppm, gone.left_over_after_ppm, gone.siblings) == (None, None, None, ())


CLUSTERED = (
    budget("lab"),
    budget("a", "lab", "30%", cluster_shares=own(c1="60%", c2="10%")),
    budget("b", "lab", "20%"),
    budget("u", "lab"),
    budget("v", "u", "10%", cluster_shares=own(c3="15%")),
)


@pytest.mark.parametrize(
    ("name", "parent", "asked_ppm", "general", "on_clusters"),
    [
        # c1 has 10 % left and b takes its general share there; elsewhere more is left.
        ("b", "lab", 350_000, (400_000, 250_000), {"c1": (100_000, -50_000), "c2": (600_000, 450_000), "c3": (350_000, 200_000)}),
        ("a", "lab", 400_000, (400_000, 300_000), {"c1": (100_000, 100_000), "c2": (600_000, 600_000), "c3": (350_000, 250_000)}),
        # What is shared below a budget without a share leaves the sum when that budget gets one.
        ("u", "lab", 200_000, (400_000, 300_000), {"c1": (100_000, 0), "c2": (600_000, 500_000), "c3": (350_000, 300_000)}),
        ("v", "u", 0, (400_000, 500_000), {"c1": (100_000, 200_000), "c2": (600_000, 700_000), "c3": (350_000, 350_000)}),
    ],
)
def test_what_is_left_over_on_each_cluster(
    name: str, parent: str, asked_ppm: int, general: tuple[int, int], on_clusters: dict[str, tuple[int, int]]
) -> None:
    whole = WholeTree(revision=3, author="ada", reason="", budgets=CLUSTERED)
    seen = proposal_figures.beside(wish(name, parent, asked_ppm), whole, ())
    assert (seen.left_over_ppm, seen.left_over_after_ppm) == general
    assert {own.cluster: (own.left_over_ppm, own.left_over_after_ppm) for own in seen.on_clusters} == on_clusters


def test_what_is_left_over_on_a_cluster_is_shown_beside_the_rest() -> None:
    whole = WholeTree(revision=3, author="ada", reason="", budgets=CLUSTERED)
    seen = proposal_figures.beside(wish("b", "lab", 350_000), whole, ())
    assert "left over on c1: 10%, with what is asked -5%" in proposal_figures.figures(seen)
    assert "40% c1:10% c2:60% c3:35%" in proposal_figures.row_of(seen, 0)
    plain = WholeTree(revision=3, author="ada", reason="", budgets=TREE)
    assert proposal_figures.beside(wish("x", "d", 0), plain, ()).on_clusters == ()


@pytest.mark.parametrize(
    ("from_ms", "until_ms", "shown"),
    [
        (None, None, ("at once", "for good")),
        (1_766_563_200_000, None, ("2025-12-24T08:00Z", "for good")),
        (None, 1_766_563_200_000, ("at once", "2025-12-24T08:00Z")),
    ],
)
def test_the_table_says_from_when_and_until_when(from_ms: int | None, until_ms: int | None, shown: tuple[str, str]) -> None:
    plain = wish("x", "d", 0)
    dated = replace(plain, proposed=replace(plain.proposed, effective_from_ms=from_ms, effective_until_ms=until_ms))
    seen = proposal_figures.beside(dated, WholeTree(revision=3, author="ada", reason="", budgets=TREE), ())
    listing = proposal_figures.table([seen], 0)
    cells = dict(zip(listing.columns, listing.rows[0], strict=True))
    assert (cells["FROM?"], cells["UNTIL?"]) == shown


async def test_a_silent_ledger_hides_no_proposal() -> None:
    class Silent:
        """In a session's stead: nobody answers."""

        place = type("Place", (), {"clusters": ("c1",)})

        async def ask(self, *_of: object) -> None:
            raise CommandFailed(Exit.UNREACHABLE, "silence")

    silent: Any = Silent()
    assert await proposals._standings(silent) == {}


@pytest.mark.parametrize(("code", "exit_code"), [("stale_revision", Exit.STALE), ("other_share", Exit.REFUSED)])
def test_a_tree_that_changed_has_an_exit_code_of_its_own(code: str, exit_code: Exit) -> None:
    refused = ProposalReply(rejected=Rejected(revision=5, faults=(Problem(code=code, sentence=f"{code}!"),)))
    with pytest.raises(CommandFailed, match=f"nothing was changed: {code}!") as failed:
        proposals._proposal(refused)
    assert failed.value.exit_code == exit_code
