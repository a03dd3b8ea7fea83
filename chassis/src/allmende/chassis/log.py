"""Logs: JSON lines off a terminal, key=value on one; to stderr, because stdout belongs to a command's answer."""

import logging
import sys
from typing import Any, Literal, TextIO, cast

import msgspec
import structlog

Level = Literal["debug", "info", "warning", "error"]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger; events are short past-tense phrases, the facts are keyword arguments."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(module=name)
    return logger


def setup(service: str, instance: str, level: Level = "info", stream: TextIO | None = None) -> None:
    """Make every log line of this process, those of libraries included, one of ours, with service and instance."""
    out = stream or cast("TextIO", _Stderr())
    on_terminal = (stream or sys.stderr).isatty()
    number: int = getattr(logging, level.upper())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
            if on_terminal
            else structlog.processors.JSONRenderer(serializer=_to_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(out),
        # A logger made before this call must not keep the old settings.
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service, instance=instance)
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[_Forward()], force=True)


class _Stderr:
    """Standard error as it is when a line is written: it may have been replaced since `setup`."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _to_json(event: object, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()


class _Forward(logging.Handler):
    """Gives what libraries log through the standard library to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        log = get_logger(record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)
