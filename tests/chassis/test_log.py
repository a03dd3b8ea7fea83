"""Where log lines go."""

import io
import sys

import pytest
import structlog

from allmende.chassis import log


def test_lines_follow_standard_error_when_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    before = structlog.get_config()
    try:
        log.setup("trial", "here")
        monkeypatch.setattr(sys, "stderr", second)
        first.close()
        log.get_logger("somewhere").warning("it goes on", number=1)
    finally:
        structlog.configure(**before)
        structlog.contextvars.clear_contextvars()
    assert '"event":"it goes on"' in second.getvalue()
