"""Requests and replies as structs, over the bus in memory."""

import msgspec
import pytest

from allmende.chassis import rpc
from allmende.chassis.errors import Poison, Transient
from allmende.chassis.fakes import FakeBus
from allmende.proto.envelope import Refusal
from allmende.proto.ledger import StandingsQuery, StandingsReply
from allmende.proto.subjects import STANDINGS


async def serving(failure: Exception | None) -> FakeBus:
    bus = FakeBus()

    async def standings(caller: str, query: StandingsQuery) -> StandingsReply:
        if failure is not None:
            raise failure
        assert caller == "alice"
        raise Refusal("unknown_cluster", f"no cluster {query.cluster}")

    await bus.answer("ledger", "1.0.0", [rpc.endpoint(STANDINGS, standings)])
    return bus


@pytest.mark.parametrize(
    ("failure", "code"),
    [(None, "unknown_cluster"), (Poison("impossible", "it cannot be"), "impossible"), (KeyError("x"), "internal_error")],
)
async def test_a_problem_comes_back_with_its_code(failure: Exception | None, code: str) -> None:
    bus = await serving(failure)
    with pytest.raises(Refusal) as found:
        await rpc.ask(bus, STANDINGS, "alice", StandingsQuery(cluster="c9"))
    assert found.value.problem.code == code


async def test_a_passing_failure_is_passing_for_the_caller_too_and_so_is_nobody_there() -> None:
    bus = await serving(Transient("the database is away"))
    for asked in (bus, FakeBus()):
        with pytest.raises(Transient):
            await rpc.ask(asked, STANDINGS, "alice", StandingsQuery(cluster="c9"))


async def test_a_request_is_read_strictly() -> None:
    bus = await serving(None)
    with pytest.raises(Refusal) as found:
        await bus.ask(STANDINGS.of("alice"), msgspec.json.encode({"cluster": 5}))
    assert found.value.problem.code == "wrong_type"


async def test_a_text_that_is_not_utf8_is_refused_before_it_is_asked() -> None:
    """As a command line holds it that was typed in another encoding."""
    with pytest.raises(Refusal) as found:
        await rpc.ask(FakeBus(), STANDINGS, "alice", StandingsQuery(cluster="caf\udce9"))
    assert found.value.problem.code == "not_utf8"
