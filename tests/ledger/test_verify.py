"""`verify` finds nothing in right books, and names every fault that is planted in the tables."""

import msgspec
import pytest

from allmende.ledger.handlers.verify import DIFFERENCES_MAX, Verification
from allmende.ledger.model import BUCKET_MS
from allmende.ledger.rules import verifying
from allmende.ledger.store.reading import ReadingStore
from allmende.ledger.store.verify import VerifyStore
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.reports import Difference, VerifyPage, VerifyQuery
from allmende.proto.units import DAY_MS, LARGEST_AMOUNT, LATEST_INSTANT_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import Desk, clock_at
from tests.ledger.test_planted import tamper
from tests.servers import Lab

FIRST = f"attempt = '{id_of(1)}' AND from_ms = {START_MS}"


async def lived(lab: Lab, hours: float = 1) -> tuple[Desk, Verification]:
    """Attempt 1 ran on 4 GPUs in two epochs with a gap, 2 runs on 2, 3 was unallocated on 1; there are 8."""
    desk = Desk(await lab.database("ledger"), clock_at(hours))
    await desk.hear(*tree(), node(gpus=8), granted(1, gpus=4), started(1), granted(2, gpus=2), started(2))
    await desk.hear(granted(3, budget=None), started(3), tick(counter(1, 2 * BUCKET_MS + 1, 5, gpus=4)))
    again = counter(1, BUCKET_MS, 1, gpus=4, epoch=2, since_ms=START_MS + 3 * BUCKET_MS)
    await desk.hear(ended(1, START_MS + 4 * BUCKET_MS, again), tick(counter(2, 6 * BUCKET_MS + 7, 9, gpus=2)))
    await desk.hear(ended(3, START_MS + BUCKET_MS - 1, counter(3, BUCKET_MS - 1, 2)))
    return desk, Verification(desk.db, VerifyStore(), ReadingStore(), desk.clock)


async def page(
    checked: Verification, from_ms: int = 0, to_ms: int | None = None, offset: int = 0, cluster: str = "c1"
) -> VerifyPage:
    return await checked.verify("olga", VerifyQuery(cluster=cluster, from_ms=from_ms, to_ms=to_ms, offset=offset))


async def test_right_books_agree_in_everything(lab: Lab) -> None:
    desk, checked = await lived(lab)
    told = await page(checked)
    assert (told.found, told.differences, told.next_from_ms) == (0, (), None)
    assert (told.postings, told.buckets, told.buckets_of_unknown_capacity) == (len(await desk.postings()), 12, 0)


PLANTED = [
    (
        "a bucket with a GPU-millisecond too many",
        "UPDATE usage_bucket SET gpu_ms = gpu_ms + 1 WHERE budget = ''",
        {("bucket", "unallocated")},
    ),
    ("a bucket that was lost", f"DELETE FROM usage_bucket WHERE budget = 'nlp' AND bucket_ms = {START_MS}", {("bucket", "nlp")}),
    (
        "a bucket without postings",
        f"INSERT INTO usage_bucket VALUES ('c1', {START_MS + 9 * BUCKET_MS}, 'rl', 5)",
        {("bucket", "rl")},
    ),
    (
        "a posting that was lost",
        f"DELETE FROM posting WHERE {FIRST}",
        {("bucket", "nlp"), ("interval", f"{id_of(1)}/0/1")},
    ),
    (
        "an instant that is posted by two epochs",
        f"UPDATE posting SET from_ms = from_ms - {BUCKET_MS}, to_ms = to_ms - {BUCKET_MS} WHERE epoch = 2",
        {("bucket", "nlp"), ("interval", f"{id_of(1)}/0/2"), ("conservation", "capacity")},
    ),
    (
        "a counter that says more than is posted",
        f"UPDATE counter SET to_ms = to_ms + 1, posted_until_ms = posted_until_ms + 1 WHERE attempt = '{id_of(3)}'",
        {("interval", f"{id_of(3)}/0/1")},
    ),
    ("a counter that was lost", f"DELETE FROM counter WHERE attempt = '{id_of(3)}'", {("interval", f"{id_of(3)}/0/1")}),
    (
        "an amount on another account, bucket and all",
        (
            f"UPDATE posting SET credit_account = 'budget/rl' WHERE attempt = '{id_of(3)}';"
            "UPDATE usage_bucket SET budget = 'rl' WHERE budget = ''"
        ),
        {("terms", "posting/3")},
    ),
    ("a grant of more GPUs than are posted", f"UPDATE attempt SET gpus = 5 WHERE attempt = '{id_of(3)}'", {("terms", "posting/3")}),
    ("GPUs that were never there", f"UPDATE node_step SET healthy = 5 WHERE at_ms = {START_MS}", {("conservation", "capacity")}),
]


@pytest.mark.parametrize(("sentence", "plant", "expected"), PLANTED, ids=[row[0] for row in PLANTED])
async def test_a_planted_fault_is_named(lab: Lab, sentence: str, plant: str, expected: set[tuple[str, str]]) -> None:
    desk, checked = await lived(lab)
    async with desk.db.transaction() as tx:
        number = await tx.connection.fetchval("SELECT number FROM posting WHERE credit_account = 'unallocated'")
    await tamper(lab, plant)
    told = await page(checked)
    found = {(each.what, each.of.replace(f"posting/{number}", "posting/3")) for each in told.differences}
    assert found == expected, told.differences
    assert told.found == len(told.differences)
    assert all(each.recomputed != each.kept or each.what in ("terms", "interval") for each in told.differences)


async def test_before_the_first_report_conservation_is_not_judged(lab: Lab) -> None:
    desk, checked = await lived(lab)
    async with desk.db.transaction() as tx:
        await tx.connection.execute("UPDATE node_step SET at_ms = at_ms + $1, healthy = 5", 3 * BUCKET_MS + 1)
    told = await page(checked)
    assert (told.found, told.buckets_of_unknown_capacity) == (0, 4)
    async with desk.db.transaction() as tx:
        await tx.connection.execute("DELETE FROM node_step")
    told = await page(checked)
    assert (told.found, told.buckets_of_unknown_capacity) == (0, 12)


async def test_days_follow_each_other_and_a_days_differences_are_paged(lab: Lab) -> None:
    desk, checked = await lived(lab, hours=24 * 2.5)
    async with desk.db.transaction() as tx:
        rows = [("c1", START_MS + number * BUCKET_MS, "rl", 1) for number in range(20, 20 + DIFFERENCES_MAX + 5)]
        await tx.connection.executemany("INSERT INTO usage_bucket VALUES ($1, $2, $3, $4)", rows)
    first = await page(checked)
    assert (first.to_ms, first.next_from_ms, first.found) == (START_MS + DAY_MS, START_MS + DAY_MS, DIFFERENCES_MAX + 5)
    rest = await page(checked, offset=DIFFERENCES_MAX)
    assert [each.at_ms for each in (*first.differences, *rest.differences)] == [row[1] for row in rows]
    later = await page(checked, START_MS + 2 * DAY_MS)
    assert (later.from_ms, later.buckets, later.next_from_ms) == (START_MS + 2 * DAY_MS, 144, None)


async def test_what_cannot_be_verified_is_refused(lab: Lab) -> None:
    _, checked = await lived(lab)
    asked = (("mars", 0, None, "unknown_cluster"), ("c1", 7, None, "not_on_an_edge"), ("c1", BUCKET_MS, BUCKET_MS, "empty_span"))
    for cluster, from_ms, to_ms, code in asked:
        with pytest.raises(Refusal) as refused:
            await page(checked, from_ms, to_ms, cluster=cluster)
        assert refused.value.problem.code == code


def test_the_longest_page_fits_one_message() -> None:
    name, most, late = "n" * 63, LARGEST_AMOUNT, LATEST_INSTANT_MS
    longest = [
        *verifying.buckets([verifying.Bucket(late, name, most, most)]),
        *verifying.intervals([verifying.Interval(id_of(1), 4_095, 2**53, late, late, late, late, most, 2**31)]),
        *verifying.terms([verifying.Terms(2**62, id_of(1), late, 10**6, 10**6, f"budget/{name}", f"budget/{name}")]),
    ]
    for each in longest:
        told = VerifyPage(
            cluster=name,
            as_of_ms=late,
            from_ms=late,
            to_ms=late,
            postings=2**62,
            buckets=288,
            buckets_of_unknown_capacity=288,
            found=10**9,
            differences=(Difference(**each._asdict()),) * DIFFERENCES_MAX,
            next_from_ms=late,
        )
        assert len(msgspec.json.encode(told)) < MAX_MESSAGE_BYTES - 1_024
