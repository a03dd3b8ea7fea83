"""Health measures progress, and says why."""

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from allmende.chassis import health as pages
from allmende.chassis.health import Health


class Watch:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(pages, "real_seconds", lambda: self.now_s)


def test_ready_only_when_every_part_is_with_the_reason_of_each_that_is_not() -> None:
    health = Health()
    assert health.why_not_ready() == {"start": "the service is starting"}
    health.ready("bus", True)
    health.ready("tree", False, "no revision of the tree has come yet")
    assert health.why_not_ready() == {"tree": "no revision of the tree has come yet"}
    health.ready("tree", True)
    assert health.why_not_ready() == {}


def test_idle_is_alive_and_waiting_messages_without_progress_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """BR-044: connected is not flowing; only progress proves flow."""
    watch, health = Watch(monkeypatch), Health(stale_s=30)
    health.progress("inbox")
    health.progress("inbox", 0)
    watch.now_s += 3_600
    assert health.why_not_alive() == {}, "nothing waits"
    health.progress("inbox", 7)
    assert health.why_not_alive() == {}, "they have just come"
    watch.now_s += 31
    health.progress("inbox", 9)
    assert "9 messages wait" in health.why_not_alive()["inbox"]
    health.progress("inbox")
    assert health.why_not_alive() == {}, "something was handled"


async def get(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Ask over a real socket, as an orchestrator does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    found: dict[str, Any] = msgspec.json.decode(body)
    return int(head.split()[1]), found


async def test_the_pages_answer_503_with_the_reasons_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, health = Watch(monkeypatch), Health(stale_s=30)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(pages.serve(health, listener))
        assert await get(port, "/readyz") == (503, {"ready": False, "why": {"start": "the service is starting"}})
        health.ready("bus", True)
        assert await get(port, "/readyz") == (200, {"ready": True, "why": {}})
        health.progress("inbox", 1)
        assert await get(port, "/healthz") == (200, {"alive": True, "why": {}, "lag": {"inbox": 1}})
        watch.now_s += 31
        status, body = await get(port, "/healthz")
        assert (status, body["alive"]) == (503, False)
        serving.cancel()
