"""The one command that makes streams and consumers, and says where a server differs from `allmende.proto.streams`.

Services only bind: a typing error in a service can therefore never make a stream. Idempotent; never deletes anything.

    python -m allmende.chassis.topology --nats-url URL --seed-file FILE --clusters a,b [--replicas 3] [--check]
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError

from allmende.chassis.accounts import ADMIN
from allmende.chassis.bus import NatsBus, connect
from allmende.chassis.errors import Misconfigured, Transient
from allmende.proto.streams import (
    ACK_WAIT_MS,
    DUPLICATE_WINDOW_MS,
    MAX_ACK_PENDING,
    MAX_MESSAGE_SIZE,
    STREAMS,
    Consumer,
    Stream,
    all_consumers,
)
from allmende.proto.units import Ms

# A stream's max_msg_size counts headers too; the envelope alone may have MAX_MESSAGE_SIZE. Ours are below 250 bytes.
HEADER_ROOM = 1_024
_NS_PER_MS = 1_000_000
_TIMEOUT_S = 10.0
# JetStream answers only some time after the port is open, longer after a crash with large streams.
_READY_TRIES = 100
_READY_WAIT_S = 0.1

_STREAM_UNKNOWN = 10_059
_CONSUMER_UNKNOWN = 10_014

Config = Mapping[str, Any]


class Change(NamedTuple):
    """One thing that was made or changed, or that differs. `wanted` and `found` are the server's own words (durations in ns)."""

    what: str
    field: str
    wanted: object
    found: object
    done: bool

    def __str__(self) -> str:
        if self.found is None and self.field == "":
            return f"{self.what}: {'made' if self.done else 'is missing'}"
        was, now = ("changed from", "to") if self.done else ("is", "not")
        return f"{self.what}: {self.field} {was} {self.found!r}, {now} {self.wanted!r}"


def stream_config(stream: Stream, replicas: int = 1) -> dict[str, Any]:
    """The server's configuration of a stream.

    `discard: new` refuses what does not fit, so that the publisher keeps it; the default drops the oldest in silence. With one
    message a subject (`last_value_only`) a new value still takes the place of the old one, because `discard_new_per_subject`
    stays off. Roll-up headers and message TTLs stay off: with them any permitted publisher could erase what others said.
    `persist_mode` stays unset: the asynchronous one confirms before the disk has it.
    """
    return {
        "name": stream.name,
        "description": stream.purpose,
        "subjects": list(stream.subjects),
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "discard_new_per_subject": False,
        "max_age": 0 if stream.max_age_ms is None else stream.max_age_ms * _NS_PER_MS,
        "max_bytes": stream.max_bytes,
        "max_msgs": -1,
        "max_msgs_per_subject": 1 if stream.last_value_only else -1,
        "max_consumers": -1,
        "max_msg_size": MAX_MESSAGE_SIZE + HEADER_ROOM,
        "num_replicas": replicas,
        "duplicate_window": DUPLICATE_WINDOW_MS * _NS_PER_MS,
        "allow_rollup_hdrs": False,
        "allow_msg_ttl": False,
        # Newcomers ask for last values without a consumer of their own (`bus.picture`).
        "allow_direct": stream.last_value_only,
        "no_ack": False,
        "persist_mode": "",
    }


def consumer_config(consumer: Consumer, ack_wait_ms: Ms = ACK_WAIT_MS) -> dict[str, Any]:
    """The server's configuration of a consumer. `max_deliver` -1: a limit would lose work in silence."""
    return {
        "durable_name": consumer.durable,
        "filter_subjects": list(consumer.filters),
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": ack_wait_ms * _NS_PER_MS,
        "max_deliver": -1,
        "max_ack_pending": MAX_ACK_PENDING,
        "max_waiting": 512,
        "replay_policy": "instant",
        "num_replicas": 0,
    }


async def apply(bus: NatsBus | Client, clusters: Sequence[str], replicas: int = 1, ack_wait_ms: Ms = ACK_WAIT_MS) -> list[Change]:
    """Make what is missing and change what may be changed; what the server will not change stays and is reported as not done.

    Raises:
        Misconfigured: the server refuses a stream or consumer outright.
        Transient: the server does not answer.
    """
    return await _Topology(bus, change=True).run(clusters, replicas, ack_wait_ms)


async def drift(bus: NatsBus | Client, clusters: Sequence[str], replicas: int = 1, ack_wait_ms: Ms = ACK_WAIT_MS) -> list[Change]:
    """Where the server differs from the table; changes nothing. Empty: it does not.

    Raises:
        Transient: the server does not answer.
    """
    return await _Topology(bus, change=False).run(clusters, replicas, ack_wait_ms)


class _Topology:
    def __init__(self, bus: NatsBus | Client, change: bool) -> None:
        self._client = bus.client if isinstance(bus, NatsBus) else bus
        self._change = change
        self._changes: list[Change] = []

    async def run(self, clusters: Sequence[str], replicas: int, ack_wait_ms: Ms) -> list[Change]:
        await self._wait_until_ready()
        for stream in STREAMS:
            await self._settle(
                f"stream {stream.name}",
                stream_config(stream, replicas),
                info=f"STREAM.INFO.{stream.name}",
                make=f"STREAM.CREATE.{stream.name}",
                change=f"STREAM.UPDATE.{stream.name}",
                unknown=_STREAM_UNKNOWN,
            )
        for consumer in all_consumers(tuple(clusters)):
            config = consumer_config(consumer, ack_wait_ms)
            where = f"{consumer.stream}.{consumer.durable}"
            await self._settle(
                f"consumer {consumer.durable} of {consumer.stream}",
                config,
                info=f"CONSUMER.INFO.{where}",
                make=f"CONSUMER.CREATE.{where}",
                change=f"CONSUMER.CREATE.{where}",
                unknown=_CONSUMER_UNKNOWN,
            )
        return self._changes

    async def _settle(self, what: str, wanted: Config, *, info: str, make: str, change: str, unknown: int) -> None:
        found = await self._ask(info, b"")
        if _code(found) == unknown:
            if self._change:
                await self._send(what, make, wanted, action="create")
            self._changes.append(Change(what, "", wanted, None, self._change))
            return
        if "error" in found:
            raise Misconfigured(f"{what}: {found['error'].get('description')}")
        differences = list(_differences(wanted, found["config"]))
        if not differences:
            return
        done = self._change
        if self._change:
            try:
                await self._send(what, change, {**found["config"], **wanted}, action="update")
            except Misconfigured:
                # Such as another storage: only a person can decide to make it anew.
                done = False
        self._changes += [Change(what, field, wanted[field], found["config"].get(field), done) for field in differences]

    async def _send(self, what: str, subject: str, config: Config, action: str) -> None:
        kept = {name: value for name, value in config.items() if value != ""}
        if subject.startswith("CONSUMER."):
            request: Config = {"stream_name": subject.split(".")[2], "config": kept, "action": action}
        else:
            request = kept
        reply = await self._ask(subject, msgspec.json.encode(request))
        if "error" in reply:
            raise Misconfigured(f"{what}: the server refuses it: {reply['error'].get('description')}")

    async def _wait_until_ready(self) -> None:
        for _ in range(_READY_TRIES):
            try:
                if "error" not in await self._ask("INFO", b""):
                    return
            except Transient:
                pass
            await asyncio.sleep(_READY_WAIT_S)
        raise Transient("JetStream does not answer: is it enabled, and may these credentials ask it?")

    async def _ask(self, subject: str, body: bytes) -> dict[str, Any]:
        try:
            reply = await self._client.request(f"$JS.API.{subject}", body, timeout=_TIMEOUT_S)
        except (NatsError, TimeoutError) as error:
            raise Transient(f"$JS.API.{subject} is not answered: {error!r}") from error
        answer: dict[str, Any] = msgspec.json.decode(reply.data)
        return answer


def _code(reply: Mapping[str, Any]) -> int:
    return int(reply.get("error", {}).get("err_code", 0))


def _differences(wanted: Config, found: Config) -> list[str]:
    """The fields whose values differ. A server leaves out what is false, empty or zero; one filter is `filter_subject`."""
    actual = dict(found)
    if found.get("filter_subject"):
        actual["filter_subjects"] = [found["filter_subject"]]
    return [field for field, value in wanted.items() if _comparable(value) != _comparable(actual.get(field))]


def _comparable(value: Any) -> Any:
    if not value:
        return None
    return sorted(value) if isinstance(value, list) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: the server is as the table says (now); 1: it differs; 2: it cannot be reached or used."""
    parser = argparse.ArgumentParser(prog="allmende.chassis.topology", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--nats-url", required=True)
    parser.add_argument("--seed-file", type=Path, help="seed of the admin user")
    parser.add_argument("--clusters", default="", help="names, separated by commas")
    parser.add_argument("--replicas", type=int, default=1, help="3 where there are three servers")
    parser.add_argument("--check", action="store_true", help="only report")
    options = parser.parse_args(arguments)
    clusters = tuple(name for name in options.clusters.split(",") if name)
    try:
        changes = asyncio.run(_run(options.nats_url, options.seed_file, clusters, options.replicas, options.check))
    except (Misconfigured, Transient, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for change in changes:
        sys.stdout.write(f"{change}\n")
    return 0 if all(change.done for change in changes) else 1


async def _run(url: str, seed_file: Path | None, clusters: Sequence[str], replicas: int, check: bool) -> list[Change]:
    bus = await connect(url, role=ADMIN.role, identity=ADMIN.identity, seed_file=seed_file)
    try:
        return await (drift if check else apply)(bus, clusters, replicas)
    finally:
        await bus.close()


if __name__ == "__main__":
    sys.exit(main())
