"""`allmende policy`: what an operator decides about one cluster. Shown as TOML, which `set --file` reads again."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import RenderableType

from allmende.cli import render, session
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.misfit import in_words
from allmende.proto.policy import (
    PastPolicy,
    Policy,
    PolicyHistoryPage,
    PolicyHistoryQuery,
    PolicyQuery,
    PolicyReply,
    PolicySet,
    SetPolicy,
)
from allmende.proto.units import SECOND_MS, Ms, format_duration, parse_duration

app = typer.Typer(help="What an operator decides about one cluster: mode, bounds, limits.", no_args_is_help=True)

STALE = "stale_policy"
UNSET = "unset"
# The keys of lengths of time; in messages they end in `_ms`.
DURATIONS = ("slice_min", "slice_cap", "slice")
# A document of 1,000 limits has some 30 KiB; more than a message holds is not read.
MAX_FILE_BYTES = 64 * 1024

ClusterOption = Annotated[str, session.name_option("The cluster.", "CLUSTER")]
Document = dict[str, Any]


@app.command()
def show(cluster: ClusterOption, lab: LabOption = None, as_json: JsonOption = False) -> None:
    """Show the policy in force, as a file that `set --file` reads."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            reply = await _in_force(opened, cluster)
            session.show(reply, f"{_head(reply, opened.now_ms())}\n{toml_of(reply.policy)}".rstrip(), as_json)

    session.run(work())


@app.command(name="set")
def set_(
    cluster: ClusterOption,
    reason: Annotated[str, typer.Option(help="Why; kept in the history for everybody to read.", show_default=False)],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", help="What to change: mode=admit, gpus_at_once.vision=64, slice_cap=unset."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A whole document (TOML, or JSON), instead of the one in force.")] = None,
    expect: Annotated[
        int | None, typer.Option(min=0, help="The revision you began from; refused if another one is in force.")
    ] = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a cluster's policy. It holds at once; what runs goes on.

    For example: allmende policy set --cluster c1 mode=observe --reason "counting first"
    """
    if not changes and file is None:
        raise typer.BadParameter("say what to change, such as mode=admit, or give a --file")
    try:
        given = None if file is None else _read(file)
        pairs = [_pair(text) for text in changes or ()]
    except ValueError as error:
        session.fail(CommandFailed(Exit.USAGE, str(error)))

    async def work() -> None:
        async with session.opened(lab) as opened:
            before = await _in_force(opened, cluster)
            document = document_of(before.policy) if given is None else given
            try:
                policy = policy_of(changed(document, pairs))
            except ValueError as error:
                raise CommandFailed(Exit.USAGE, str(error)) from None
            revision = before.revision if expect is None else expect
            request = SetPolicy(cluster=cluster, expected_revision=revision, reason=reason, policy=policy)
            try:
                reply = await opened.ask(subjects.SET_POLICY, request, PolicySet)
            except CommandFailed as failed:
                raise CommandFailed(Exit.STALE, str(failed), failed.code) if failed.code == STALE else failed from None
            session.show(reply, _words(reply), as_json)

    session.run(work())


@app.command()
def history(
    cluster: ClusterOption,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many, newest first.")] = 20,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who changed a cluster's policy, when and why."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            query = PolicyHistoryQuery(cluster=cluster, limit=limit)
            page = await opened.ask(subjects.POLICY_HISTORY, query, PolicyHistoryPage)
            session.show(page, _table(page, cluster, opened.now_ms()), as_json)

    session.run(work())


async def _in_force(opened: Session, cluster: str) -> PolicyReply:
    opened.check_cluster(cluster)
    return await opened.ask(subjects.POLICY, PolicyQuery(cluster=cluster), PolicyReply)


def _head(reply: PolicyReply, now_ms: Ms) -> str:
    cap = f"# the longest slice is {format_duration(reply.slice_cap_ms)}"
    if not reply.revision:
        return f"# {reply.cluster}: nobody has set a policy; this is what holds then\n{cap}"
    when = render.ago(reply.from_ms, now_ms)
    # A line break in somebody's reason must not end the comment.
    why = " ".join(reply.reason.split())
    return f"# {reply.cluster}, revision {reply.revision}, {when} by {reply.author}: {why}\n{cap}"


def _words(reply: PolicySet) -> str:
    if reply.status == "unchanged":
        return f"nothing differs from revision {reply.revision}"
    words = f"revision {reply.revision} is in force on {reply.cluster}"
    if reply.claims:
        words += f"; {render.count(reply.claims, 'open claim')} withdrawn"
    return words if reply.known else f"{words}, of which no node has been reported yet"


def _table(page: PolicyHistoryPage, cluster: str, now_ms: Ms) -> RenderableType:
    title = f"policies of {cluster}, newest first" if page.policies else f"nobody has set a policy for {cluster}"
    columns = ("REVISION#", "SINCE", "BY", "WHY~", "DOCUMENT~")
    return render.table(title, columns, (_row(past, now_ms) for past in page.policies))


def _row(past: PastPolicy, now_ms: Ms) -> tuple[str, ...]:
    document = ", ".join(f"{key}={_plain(value)}" for key, value in _flat(document_of(past.policy)))
    return str(past.revision), render.ago(past.from_ms, now_ms), past.author, past.reason, document


# -------------------------------------------------------------------------------------------------------------------- the document


def document_of(policy: Policy) -> Document:
    """A policy as a file says it: lengths of time as `8h`, and nothing that is unset."""
    return _said(msgspec.to_builtins(policy))


def _said(fields: Mapping[str, Any]) -> Document:
    found: Document = {}
    for key, value in fields.items():
        if isinstance(value, Mapping):
            # Names of budgets are no keys of ours: one may end in `_ms`.
            found[key] = _said(value) if key == "debug_lane" else dict(value)
        elif key.endswith("_ms") and value is not None and (text := duration_text(value)) is not None:
            found[key.removesuffix("_ms")] = text
        elif value is not None:
            found[key] = value
    return found


def duration_text(length_ms: Ms) -> str | None:
    """`90m` rather than `1h 30m`: one unit, so that nothing is rounded away and it can be read again. None: no whole seconds."""
    for size_s, unit in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        if length_ms and length_ms % (size_s * SECOND_MS) == 0:
            return f"{length_ms // (size_s * SECOND_MS)}{unit}"
    return None if length_ms else "0"


def policy_of(document: Document) -> Policy:
    """Read a document: `slice_cap = "8h"`, or `slice_cap_ms` as messages and `show --json` have it.

    Raises:
        ValueError: a key that there is not, or a value that cannot be; the sentence says which.
    """
    fields = _meant(document)
    if isinstance(lane := fields.get("debug_lane"), Mapping):
        fields["debug_lane"] = _meant(lane)
    try:
        return msgspec.convert(fields, Policy)
    except msgspec.ValidationError as error:
        raise ValueError(f"the policy is not right: {in_words(error)}") from None


def _meant(document: Mapping[str, Any]) -> Document:
    return {
        f"{key}_ms" if key in DURATIONS else key: _length(value) if key in DURATIONS else value for key, value in document.items()
    }


def _length(value: Any) -> Ms:
    # 0 has no unit; 30 says none.
    return parse_duration(value if isinstance(value, str) else str(value))


def changed(document: Document, pairs: list[tuple[list[str], Any]]) -> Document:
    """The document with some keys set; `unset` takes one away.

    Raises:
        ValueError: a key is said to lie below one that has a value of its own.
    """
    document = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    for path, value in pairs:
        inside = document if len(path) == 1 else document.setdefault(path[0], {})
        if not isinstance(inside, dict):
            raise ValueError(f"{path[0]} has no keys below it")
        if value == UNSET:
            inside.pop(path[-1], None)
        else:
            inside[path[-1]] = value
    return document


def _pair(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    path = key.split(".")
    if not equals or not all(path) or len(path) > 2:
        raise ValueError(f"{text!r} is not KEY=VALUE, such as mode=admit or gpus_at_once.vision=64")
    if value in ("true", "false"):
        return path, value == "true"
    return path, int(value) if value.isascii() and value.isdecimal() else value


def _read(file: Path) -> Document:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"{file} is larger than a policy can be")
        text = content.decode()
        document = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise ValueError(f"{file} is nested deeper than a policy can be") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{file} is not a document of keys and values")
    if not document:
        # What is left of a file when `show` into it failed. It would end a mode of `observe` without a word.
        raise ValueError(
            f"{file} says nothing, not even a mode; to go back to what holds where nobody has set a policy, unset the keys"
        )
    return document


def toml_of(policy: Policy) -> str:
    """A policy as a TOML file."""
    document = document_of(policy)
    lines = [f"{key} = {_plain(value, quoted=True)}" for key, value in document.items() if not isinstance(value, dict)]
    for key, table in document.items():
        if isinstance(table, dict) and table:
            lines += ["", f"[{key}]", *(f"{name} = {_plain(value, quoted=True)}" for name, value in table.items())]
    return "\n".join(lines)


def _plain(value: Any, *, quoted: bool = False) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if quoted and isinstance(value, str) else str(value)


def _flat(document: Document) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in document.items():
        found += [(f"{key}.{name}", each) for name, each in value.items()] if isinstance(value, dict) else [(key, value)]
    return found
