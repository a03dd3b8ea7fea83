"""The guide to notices says what the code does: its receiver is run as it stands there, and every kind and state is explained."""

import http.client
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from allmende.budget.rules.delivering import TRIES_MOST, signed
from allmende.budget.rules.notices import LEVEL, LEVELS, PACE
from allmende.proto.notices import DeliveryState
from tests.budget.receiver import SECRET, SECRET_TEXT

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "notices.md").read_text(encoding="utf-8")
WAIT_S = 20.0
BODY = msgspec.json.encode({"type": "budget.notice", "text": "vision has used 81 %", "data": {}})


class Running:
    """The guide's receiver, as a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        self.port = int(process.stdout.readline().rsplit(" ", 1)[1])

    def post(self, headers: dict[str, str], body: bytes = BODY) -> int:
        """Post once; the status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request("POST", "/", body, headers)
            with connection.getresponse() as answer:
                return answer.status
        finally:
            connection.close()

    def said(self) -> str:
        """End it; what it has printed since it began to listen."""
        self.process.terminate()
        out, _err = self.process.communicate(timeout=WAIT_S)
        return out


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    (source,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    file = tmp_path / "receiver.py"
    file.write_text(source)
    env = {**os.environ, "WEBHOOK_SECRET": SECRET_TEXT, "PORT": "0"}
    process = subprocess.Popen([sys.executable, str(file)], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


def now_s() -> int:
    """Real time, as the receiver sees it."""
    return int(time.time())


def test_the_guides_receiver_takes_what_is_genuine_once_and_refuses_the_rest(running: Running) -> None:
    good = dict(signed("n1", now_s(), BODY, SECRET))
    assert running.post(good) == 204
    assert running.post(good) == 204
    assert running.post(good, BODY.replace(b"81", b"18")) == 401
    assert running.post({**good, "webhook-id": "n2"}) == 401
    assert running.post(dict(signed("n3", now_s() - 600, BODY, SECRET))) == 401
    assert running.post(dict(signed("n4", now_s() + 600, BODY, SECRET))) == 401
    assert running.post(dict(signed("n5", now_s(), BODY, b"x" * 32))) == 401
    assert running.post({}) == 401
    # While a secret is changed there may be a signature by each.
    other = signed("n6", now_s(), BODY, b"x" * 32)["webhook-signature"]
    both = dict(signed("n6", now_s(), BODY, SECRET))
    assert running.post({**both, "webhook-signature": f"{other} {both['webhook-signature']}"}) == 204
    assert running.said() == "vision has used 81 %\n" * 2


def test_the_receiver_of_the_guide_is_short() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(source.splitlines()) <= 26


def test_every_kind_level_state_and_bound_is_explained() -> None:
    for word in (LEVEL, PACE, "given_up", f"{TRIES_MOST} tries", *(str(level) for level in LEVELS)):
        assert word in GUIDE, word
    assert "given_up" in get_args(DeliveryState)
