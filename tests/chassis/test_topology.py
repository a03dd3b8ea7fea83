"""Streams and consumers are made once, repaired, and reported where they differ."""

import asyncio
import sys

import msgspec
import pytest

from allmende.chassis import accounts, topology
from allmende.chassis.topology import Change
from allmende.proto.streams import STREAMS, Consumer, all_consumers
from tests.servers import CLUSTERS, Lab


async def asked(lab: Lab, subject: str, body: object = None) -> dict[str, dict[str, object]]:
    """An answer of the server to the admin."""
    admin = await lab.bus("admin")
    reply = await admin.client.request(f"$JS.API.{subject}", b"" if body is None else msgspec.json.encode(body), timeout=5)
    answer: dict[str, dict[str, object]] = msgspec.json.decode(reply.data)
    return answer


async def test_a_second_run_finds_nothing_to_do(lab: Lab) -> None:
    admin = await lab.bus("admin")
    assert await topology.apply(admin, CLUSTERS) == []
    assert await topology.drift(admin, CLUSTERS) == []


async def test_the_streams_have_what_the_books_rest_on(lab: Lab) -> None:
    for stream in STREAMS:
        config = (await asked(lab, f"STREAM.INFO.{stream.name}"))["config"]
        assert config["discard"] == "new"
        assert config["retention"] == "limits"
        assert config["max_msg_size"] == 64 * 1024 + topology.HEADER_ROOM
        for flag in ("allow_rollup_hdrs", "allow_msg_ttl", "discard_new_per_subject", "persist_mode", "no_ack"):
            assert not config.get(flag), flag
    for consumer in all_consumers(CLUSTERS):
        config = (await asked(lab, f"CONSUMER.INFO.{consumer.stream}.{consumer.durable}"))["config"]
        assert (config["ack_policy"], config.get("max_deliver", -1)) == ("explicit", -1)


async def test_a_missing_consumer_and_a_changed_stream_are_reported_and_then_repaired(lab: Lab) -> None:
    admin = await lab.bus("admin")
    await asked(lab, "CONSUMER.DELETE.USAGE.ledger")
    config = (await asked(lab, "STREAM.INFO.TREE"))["config"]
    await asked(lab, "STREAM.UPDATE.TREE", {**config, "max_bytes": 1_000_000})
    tree = next(stream for stream in STREAMS if stream.name == "TREE")
    size = Change("stream TREE", "max_bytes", tree.max_bytes, 1_000_000, False)
    gone = Change("consumer ledger of USAGE", "", topology.consumer_config(_ledger()), None, False)
    assert await topology.drift(admin, CLUSTERS) == [size, gone]
    assert await topology.apply(admin, CLUSTERS) == [size._replace(done=True), gone._replace(done=True)]
    assert await topology.drift(admin, CLUSTERS) == []
    assert str(size) == f"stream TREE: max_bytes is 1000000, not {tree.max_bytes}"
    assert str(gone) == "consumer ledger of USAGE: is missing"


def _ledger() -> Consumer:
    return next(each for each in all_consumers(()) if (each.stream, each.durable) == ("USAGE", "ledger"))


async def test_asynchronous_persistence_is_seen_and_not_hidden(lab: Lab) -> None:
    await asked(lab, "STREAM.DELETE.REFUSALS")
    refusals = next(stream for stream in STREAMS if stream.name == "REFUSALS")
    made = await asked(lab, "STREAM.CREATE.REFUSALS", {**topology.stream_config(refusals), "persist_mode": "async"})
    assert "error" not in made
    differences = [change for change in await topology.drift(await lab.bus("admin"), CLUSTERS) if change.field == "persist_mode"]
    assert [(change.wanted, change.found, change.done) for change in differences] == [("", "async", False)]
    # The server does not change it back, or does: what counts is that the report says truly what is.
    applied = [change for change in await topology.apply(await lab.bus("admin"), CLUSTERS) if change.field == "persist_mode"]
    left = [change for change in await topology.drift(await lab.bus("admin"), CLUSTERS) if change.field == "persist_mode"]
    assert applied[0].done == (left == [])


async def test_a_new_cluster_gets_its_consumer_and_its_orders(lab: Lab) -> None:
    admin = await lab.bus("admin")
    assert [change.what for change in await topology.apply(admin, (*CLUSTERS, "c3"))] == ["consumer agent-c3 of DECISIONS"]
    agent, admission = await lab.bus("agent", "c3"), await lab.bus("admission")
    await admission.publish("admission.job_granted.v1.c3.a1", "one", b"1")
    assert [delivery.data for delivery in await agent.subscribe("DECISIONS", "agent-c3").pull(1, 5.0)] == [b"1"]


@pytest.mark.parametrize(
    ("clusters", "check", "code", "said"), [("c1,c2", True, 0, ""), ("c1,c2,c9", True, 1, "agent-c9"), ("c9", False, 0, "made")]
)
async def test_the_command(lab: Lab, clusters: str, check: bool, code: int, said: str) -> None:
    seed = (await lab.user("admin")).seed_file
    assert accounts.ADMIN.role == "admin"
    arguments = ["--nats-url", lab.nats_url, "--seed-file", str(seed), "--clusters", clusters, *(["--check"] if check else [])]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "allmende.chassis.topology",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == code, err
    assert said in out.decode()
