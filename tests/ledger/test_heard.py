"""What was heard is enough to compute postings anew, from any seal; what does not follow is named; old days go behind a seal."""

import msgspec
import pytest

from allmende.ledger.handlers.heard import BATCHES_AT_ONCE, DIFFERENCES_MAX, HeardVerification, Keeping
from allmende.ledger.model import BUCKET_MS
from allmende.ledger.store.booking import BookingStore
from allmende.proto.corrections import Correct
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.quarantine import ReleaseItem
from allmende.proto.reports import Difference, VerifyEventsPage, VerifyEventsQuery
from allmende.proto.units import DAY_MS, HOUR_MS, LARGEST_AMOUNT, LATEST_INSTANT_MS, MINUTE_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import Desk, clock_at
from tests.ledger.test_planted import tamper
from tests.servers import Lab

FIRST = f"attempt = '{id_of(1)}' AND from_ms = {START_MS}"


async def lived(lab: Lab, seal_words: int = 10**9) -> Desk:
    """1 in two epochs with a gap, 2 still runs, 3 unallocated, 4 on c2; ticks late, twice, backwards, by a wrong clock."""
    desk = Desk(await lab.database("ledger"), clock_at(2), seal_words=seal_words)
    await desk.hear(*tree(), node(), node(cluster="c2"), granted(1, gpus=4), started(1), granted(2, gpus=2), tick(counter(4, 1, 1)))
    await desk.hear(granted(3, budget=None), granted(4, cluster="c2"), tick(counter(1, 2 * BUCKET_MS + 1, 5, gpus=4)))
    await desk.hear(
        tick(counter(1, BUCKET_MS, 4, gpus=4), counter(2, HOUR_MS, 9, gpus=2)), tick(counter(4, HOUR_MS, 1), cluster="c2")
    )
    await desk.hear(
        tick(counter(2, 7, 10, gpus=2), counter(4, HOUR_MS, 2)), tick(counter(3, BUCKET_MS, 1)), started(1, START_MS + 1)
    )
    again = counter(1, BUCKET_MS, 1, gpus=4, epoch=2, since_ms=START_MS + 3 * BUCKET_MS)
    await desk.hear(tick(counter(3, 2 * BUCKET_MS, 2)), sent_at_ms=desk.clock.now_ms() + HOUR_MS)
    await desk.quarantine.release(
        "olga", ReleaseItem(release=id_of(900), cluster="c1", what=f"{id_of(3)}/0/1", code="clock_off", reason="right")
    )
    await desk.hear(ended(1, START_MS + 4 * BUCKET_MS, again), tick(counter(2, HOUR_MS + 7, 11, gpus=2)))
    await desk.hear(ended(3, START_MS + BUCKET_MS - 1, counter(3, 2 * BUCKET_MS, 9)))
    return desk


async def computed(desk: Desk, cluster: str = "c1") -> list[VerifyEventsPage]:
    """All pieces."""
    checked = HeardVerification(desk.db, desk.heard, desk.clock)
    pages: list[VerifyEventsPage] = []
    after: int | None = None
    while True:
        page = await checked.verify("olga", VerifyEventsQuery(cluster=cluster, after=after))
        pages.append(page)
        if page.next_after is None:
            return pages
        after = page.next_after


def names(pages: list[VerifyEventsPage]) -> set[tuple[str, str]]:
    return {(each.what, each.of) for page in pages for each in page.differences}


@pytest.mark.parametrize("seal_words", [10**9, 5, 1], ids=["from the beginning", "from seal to seal", "a seal after every batch"])
async def test_the_postings_follow_from_what_was_heard(lab: Lab, seal_words: int) -> None:
    desk = await lived(lab, seal_words)
    for cluster in ("c1", "c2"):
        pages = await computed(desk, cluster)
        assert names(pages) == set()
        assert sum(page.postings for page in pages) == len(await desk.postings(cluster)) > 0
        assert [page.upto for page in pages[:-1]] == [page.after for page in pages[1:]], "the pieces meet"
        assert (len(pages) > 3) == (seal_words < 10 and cluster == "c1")


ONE = id_of(1)
PLANTED = [
    ("a posting that was lost", f"DELETE FROM posting WHERE {FIRST}", {("posting", f"{ONE}/0/1")}),
    (
        "a posting on another account, grant and bucket and all",
        (
            "UPDATE posting SET credit_account = 'budget/rl' WHERE credit_account = 'budget/nlp' AND cluster = 'c1';"
            "UPDATE attempt SET budget = 'rl' WHERE budget = 'nlp' AND cluster = 'c1';"
            "UPDATE usage_bucket SET budget = 'rl' WHERE budget = 'nlp' AND cluster = 'c1'"
        ),
        {("posting", f"{ONE}/0/1"), ("posting", f"{ONE}/0/2"), ("posting", f"{id_of(2)}/0/1")},
    ),
    (
        "a posting and its counter that nobody spoke of",
        f"UPDATE posting SET to_ms = to_ms - 1, amount_gpu_ms = gpus * (to_ms - 1 - from_ms) WHERE {FIRST}",
        {("posting", f"{ONE}/0/1")},
    ),
    (
        "a running counter that is ahead",
        f"UPDATE counter SET to_ms = to_ms + 1, held_ms = held_ms + 1 WHERE attempt = '{id_of(2)}'",
        {("counter", f"{id_of(2)}/0/1")},
    ),
]


@pytest.mark.parametrize(("sentence", "plant", "expected"), PLANTED, ids=[row[0] for row in PLANTED])
@pytest.mark.parametrize("seal_words", [10**9, 5])
async def test_what_does_not_follow_is_named(
    lab: Lab, sentence: str, plant: str, expected: set[tuple[str, str]], seal_words: int
) -> None:
    desk = await lived(lab, seal_words)
    await tamper(lab, plant)
    assert names(await computed(desk)) == expected
    assert names(await computed(desk, "c2")) == set()


async def test_a_correction_dated_back_and_a_late_tick_void_no_seal(lab: Lab) -> None:
    """The recount of BR-037: a seal is a cut in what was heard, so what is dated before it is heard after it."""
    desk = await lived(lab, seal_words=1)
    before = await computed(desk)
    reset = Correct(
        correction=id_of(901),
        cluster="c1",
        take_from="budget/nlp",
        charge_to="capacity",
        from_ms=START_MS,
        to_ms=START_MS + 2 * BUCKET_MS,
        reason="a reset",
    )
    await desk.corrections.correct("olga", reset)
    late = ended(5, START_MS + MINUTE_MS, counter(5, MINUTE_MS, 9))
    await desk.hear(granted(5, at_ms=START_MS), late)
    after = await computed(desk)
    assert (names(after), after[0].after) == (set(), before[0].after)
    assert sum(page.postings for page in after) == sum(page.postings for page in before) + 1


async def test_of_a_ledger_that_was_there_before_the_first_seal_holds_what_it_had(lab: Lab) -> None:
    old = await lived(lab)
    async with old.db.transaction() as tx:
        for table in ("heard", "heard_head", "seal"):
            await tx.connection.execute(f"DELETE FROM {table}")
    had = len(await old.postings())
    desk = Desk(old.db, old.clock, start=50)
    await desk.hear(ended(2, START_MS + 90 * MINUTE_MS, counter(2, 90 * MINUTE_MS, 99, gpus=2)))
    (page,) = await computed(desk)
    assert (page.after, names([page]), page.postings) == (0, set(), len(await desk.postings()) - had)
    assert page.postings > 0


async def test_what_is_said_again_of_a_complete_attempt_is_not_judged(lab: Lab) -> None:
    desk = await lived(lab, seal_words=1)
    await desk.hear(ended(1, START_MS + 4 * BUCKET_MS), tick(counter(1, 9, 1, gpus=4)))
    pages = await computed(desk)
    assert (names(pages), pages[-2].not_judged + pages[-1].not_judged) == (set(), 1)


async def days_of(desk: Desk) -> list[int]:
    async with desk.db.reading() as connection:
        return await desk.heard.days(connection)


async def test_old_days_go_once_a_seal_comes_after_them(lab: Lab) -> None:
    desk = await lived(lab)
    keeping = Keeping(desk.heard, BookingStore(), desk, desk.clock, keep_ms=3 * DAY_MS)
    begun = await days_of(desk)
    assert await keeping.drop_one() is False
    for day in range(1, 6):
        desk.clock.advance(DAY_MS)
        await desk.hear(tick(counter(2, day * DAY_MS, 20 + day, gpus=2)))
    dropped = 0
    while await keeping.drop_one():
        dropped += 1
    assert dropped == len(begun), "the days of the story, of which c2 said nothing later"
    left = await days_of(desk)
    assert left[0] == begun[-1] + 1
    pages = await computed(desk)
    assert (names(pages), pages[0].after > 0) == (set(), True)
    assert names(await computed(desk, "c2")) == set()
    with pytest.raises(Refusal) as refused:
        await HeardVerification(desk.db, desk.heard, desk.clock).verify("olga", VerifyEventsQuery(cluster="c1", after=0))
    assert refused.value.problem.code == "seal_gone"
    assert (await desk.state()).postings > 0, "postings and buckets stay"


async def test_a_batch_that_is_missing_is_said(lab: Lab) -> None:
    desk = await lived(lab)
    async with desk.db.transaction() as tx:
        await tx.connection.execute("DELETE FROM heard WHERE number = 2")
    for cluster, code in (("c1", "batch_missing"), ("mars", "unknown_cluster")):
        with pytest.raises(Refusal) as refused:
            await computed(desk, cluster)
        assert refused.value.problem.code == code


async def test_many_batches_and_differences_are_paged(lab: Lab) -> None:
    desk = await lived(lab)
    many = range(100, 100 + DIFFERENCES_MAX + 7)
    for number in range(BATCHES_AT_ONCE + 3):
        await desk.hear(tick(counter(2, 90 * MINUTE_MS + number, 50 + number, gpus=2)))
    await desk.hear(*(granted(number) for number in many), *(ended(n, START_MS + 1, counter(n, 1, 1)) for n in many))
    assert names(await computed(desk)) == set()
    await tamper(lab, f"DELETE FROM posting WHERE attempt >= '{id_of(100)}'")
    checked = HeardVerification(desk.db, desk.heard, desk.clock)
    first = await checked.verify("olga", VerifyEventsQuery(cluster="c1"))
    rest = await checked.verify("olga", VerifyEventsQuery(cluster="c1", offset=DIFFERENCES_MAX))
    assert first.found == rest.found == len(many)
    assert names([first, rest]) == {("posting", f"{id_of(number)}/0/1") for number in many}


def test_the_longest_page_fits_one_message() -> None:
    late, most, name = LATEST_INSTANT_MS, LARGEST_AMOUNT, "n" * 63
    of = f"{id_of(1)}/4095/{2**53}"
    longest = Difference(what="posting", of=of, at_ms=late, recomputed=most, kept=most, sentence="s" * 480)
    page = VerifyEventsPage(
        cluster=name,
        as_of_ms=late,
        after=2**53,
        upto=2**53,
        from_ms=late,
        to_ms=late,
        words=2**53,
        postings=2**53,
        not_judged=2**53,
        found=2**53,
        differences=(longest,) * DIFFERENCES_MAX,
        next_after=2**53,
    )
    assert len(msgspec.json.encode(page)) <= MAX_MESSAGE_BYTES
