"""The subject table against the source: every service hears, says and answers exactly what the table says it does.

Read from the syntax tree, not from the text. A message is *heard* where its class is matched (`case JobGranted():`, `isinstance`, a
key of a table of handlers, `type(body) is ...`), and *said* where its class is called. An annotation or an import alone counts for
nothing.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from allmende.proto import subjects
from allmende.proto.message import Message, MessageRefused
from allmende.proto.subjects import REQUESTS, SERVICES, SUBJECTS, Role

ROOT = Path(__file__).parents[2]
SOURCES: dict[Role, Path] = {
    **{service: ROOT / "services" / service / "src" / "allmende" / service for service in SERVICES},
    # Not the whole client: the workload and the synthetic cluster around the SDK play people and hardware.
    "agent": ROOT / "clients" / "agent" / "src" / "allmende" / "agent" / "sdk",
}
CLASSES = {row.message.__name__: row.message for row in SUBJECTS}
# Said by the chassis' inbox on behalf of every service; that it does is tested there. A service may say it of part of a message,
# as the ledger does of one counter of a tick.
BY_CHASSIS = {MessageRefused}


class Found(NamedTuple):
    """Message classes and request rows in a folder of source."""

    heard: set[type[Message]]
    said: set[type[Message]]
    answered: set[str]


def scan(folder: Path) -> Found:
    """What a folder's source handles, makes and answers."""
    found = Found(set(), set(), set())
    for path in sorted(folder.rglob("*.py")):
        _scan_file(ast.parse(path.read_text(encoding="utf-8")), found)
    return found


def _scan_file(tree: ast.Module, found: Found) -> None:
    names = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.MatchClass):
            _add(found.heard, node.cls, names)
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                _add(found.heard, key, names)
        elif isinstance(node, ast.Compare):
            for each in node.comparators:
                _add(found.heard, each, names)
        elif isinstance(node, ast.Call):
            _add(found.said, node.func, names)
            if isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                for each in _alternatives(node.args[1]):
                    _add(found.heard, each, names)
            if _called(node.func) == "endpoint":
                found.answered.update(name for each in node.args if (name := _request(each)))


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Local name -> name of the message class, or the module it may be an attribute of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("allmende.proto"):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Tuple):
        for each in node.elts:
            yield from _alternatives(each)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _alternatives(node.left)
        yield from _alternatives(node.right)
    else:
        yield node


def _add(into: set[type[Message]], node: ast.expr | None, names: dict[str, str]) -> None:
    name = None
    if isinstance(node, ast.Name):
        name = names.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
        # `admission.JobGranted`, with `from allmende.proto import admission`.
        name = node.attr
    if name in CLASSES:
        into.add(CLASSES[name])


def _called(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _request(node: ast.expr) -> str | None:
    name = _called(node)
    return name if name is not None and isinstance(getattr(subjects, name, None), subjects.Request) else None


def _words(classes: set[type[Message]]) -> list[str]:
    return sorted(each.TYPE for each in classes)


ROLES = pytest.mark.parametrize("role", SOURCES)


@ROLES
def test_a_role_hears_what_the_table_says(role: Role) -> None:
    wanted = {row.message for row in SUBJECTS if role in row.hears}
    assert _words(scan(SOURCES[role]).heard & wanted) == _words(wanted)


@ROLES
def test_a_role_handles_nothing_that_the_table_does_not_let_it_hear(role: Role) -> None:
    # Its own messages it may match as well: a decision on its way out is a value too.
    allowed = {row.message for row in SUBJECTS if role in row.hears or role in row.says}
    assert _words(scan(SOURCES[role]).heard - allowed) == []


@ROLES
def test_a_role_says_what_the_table_says_and_nothing_else(role: Role) -> None:
    wanted = {row.message for row in SUBJECTS if role in row.says} - BY_CHASSIS
    assert _words(scan(SOURCES[role]).said - BY_CHASSIS) == _words(wanted)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_answers_its_requests_and_no_others(service: Role) -> None:
    wanted = {name for name, row in vars(subjects).items() if isinstance(row, subjects.Request) and row.service == service}
    assert len(wanted) == sum(row.service == service for row in REQUESTS)
    assert scan(SOURCES[service]).answered == wanted


def test_the_scan_sees_what_it_should_and_not_more() -> None:
    source = """
from allmende.proto import admission as words, subjects
from allmende.proto.agent import UsageTick, GpuFreed, AttemptEnded, NodeReported, AttemptStarted
from elsewhere import JobQueued
def hear(body: NodeReported):
    match body:
        case UsageTick(): pass
        case words.ClaimRaised(cluster=name): pass
    if isinstance(body, GpuFreed | words.JobEnded): pass
    if type(body) is AttemptEnded: pass
    table = {words.JobGranted: hear}
    endpoint(subjects.TREE, hear)
    print(subjects.QUEUE)
    JobQueued()
    return words.JobRefused(), AttemptStarted(cluster="c1")
"""
    found = Found(set(), set(), set())
    _scan_file(ast.parse(source), found)
    assert _words(found.heard) == sorted(["usage.tick", "claim.raised", "gpu.freed", "job.ended", "attempt.ended", "job.granted"])
    assert _words(found.said) == ["attempt.started", "job.refused"]
    assert found.answered == {"TREE"}
