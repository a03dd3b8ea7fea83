"""Settings: one struct a service, filled from environment, TOML file and defaults, in this order. Its field docstrings are
the manual.

A name that nobody knows is refused, because a misspelt setting would silently be its default. Reads no environment itself: `boot`
passes it in.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields

from allmende.chassis.errors import Misconfigured

Port = Annotated[int, Meta(ge=0, le=65_535)]
# Values of these are never printed. A chat service's webhook has its secret in the path.
_SECRET = ("password", "secret", "token", "seed", "webhook_url")


class BaseSettings(Struct, frozen=True, kw_only=True):
    """What every service needs. A service adds fields of its own in its `config`."""

    nats_url: str
    """Where NATS is: nats://host:port."""
    nats_seed_file: str | None = None
    """The file with this service's nkey seed; none for a server without users."""
    database_url: str
    """Where PostgreSQL is, as this service's own role: postgresql://role:password@host:port/database."""
    clock: str = "real"
    """`real`, or REAL_MS:ORIGIN_MS:RATE for a scaled run; the same for every process of the run."""
    http_host: str = "127.0.0.1"
    """The address for /healthz, /readyz and /metrics. 0.0.0.0 lets everybody see them."""
    http_port: Port = 0
    """The port for them; 0 takes a free one."""
    port_file: str | None = None
    """A file to write that port into, once it is open."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important log line that is written."""
    migrate: bool = True
    """Bring the database schema up to date at the start. False where `migrate` is run apart, by another role."""
    trace_console: bool = False
    """Print every span to stdout."""


S = TypeVar("S", bound=BaseSettings)


class Loaded(NamedTuple):
    """Settings, and where each value came from: a variable's name, the file's name or `default`."""

    settings: Any
    origins: Mapping[str, str]


def load(service: str, kind: type[S], environment: Mapping[str, str], file: Path | None) -> tuple[S, Mapping[str, str]]:
    """Fill the settings of a service; returns them, and for each field where it came from.

    ALLMENDE_LEDGER_HTTP_PORT is for the ledger; ALLMENDE_NATS_URL, for a field that every service has, is for all; the service's
    own wins. An empty variable counts as unset. Lists, tables and structs are written as JSON.

    Raises:
        Misconfigured: an unknown name, a missing or impossible value; the sentence names every fault.
    """
    faults: list[str] = []
    types = {field.name: field.type for field in fields(kind)}
    found: dict[str, tuple[Any, str]] = {}
    _from_file(file, types, found, faults)
    _from_environment(service, types, environment, found, faults)
    for field in fields(kind):
        if field.required and field.name not in found and not any(field.name in fault for fault in faults):
            faults.append(f"{field.name} is missing: set ALLMENDE_{service.upper()}_{field.name.upper()}")
    if faults:
        raise Misconfigured("; ".join(faults))
    try:
        settings = kind(**{name: value for name, (value, _) in found.items()})
    except ValueError as error:
        # A rule between several fields, from the struct's __post_init__.
        raise Misconfigured(str(error)) from error
    return settings, {name: found[name][1] if name in found else "default" for name in types}


def _from_file(file: Path | None, types: Mapping[str, Any], found: dict[str, tuple[Any, str]], faults: list[str]) -> None:
    if file is None:
        return
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Misconfigured(f"the settings file {file} cannot be read: {error}") from error
    for name, value in values.items():
        if name not in types:
            faults.append(f"{file} sets {name}, which nobody knows")
            continue
        try:
            found[name] = (msgspec.convert(value, types[name]), str(file))
        except msgspec.ValidationError as error:
            faults.append(f"{file}: {name} = {value!r}: {error}")


def _from_environment(
    service: str, types: Mapping[str, Any], environment: Mapping[str, str], found: dict[str, tuple[Any, str]], faults: list[str]
) -> None:
    own = f"ALLMENDE_{service.upper()}_"
    common = {field.name for field in fields(BaseSettings)}
    # Shorter prefix first, so that the service's own variable wins.
    names = sorted((name for name in environment if name.startswith("ALLMENDE_")), key=lambda name: (name.startswith(own), name))
    for variable in names:
        field = variable.removeprefix(own if variable.startswith(own) else "ALLMENDE_").lower()
        text = environment[variable]
        if variable.startswith(own) and field not in types:
            faults.append(f"{variable} is set, but {service} has no setting {field}")
        elif text and field in (types if variable.startswith(own) else common):
            try:
                found[field] = (_read(text, types[field]), variable)
            except msgspec.MsgspecError as error:
                shown = "***" if _is_secret(field) else repr(text)
                faults.append(f"{variable}={shown}: {error}")


def _read(text: str, kind: Any) -> Any:
    """A value from text: as it stands where the type takes text, `5` and `true` read, JSON where it wants more."""
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        if text[0] not in "[{":
            raise
        return msgspec.json.decode(text, type=kind)


def _is_secret(name: str) -> bool:
    return name.endswith(_SECRET)


def shown(settings: BaseSettings, origins: Mapping[str, str]) -> str:
    """The effective settings as TOML, one a line with its origin, without secrets."""
    lines = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value is not None and _is_secret(field.name):
            value = "***"
        elif isinstance(value, str) and "://" in value:
            value = _without_password(value)
        text = "# unset" if value is None else f"= {msgspec.json.encode(value).decode()}"
        lines.append(f"{field.name} {text}  # {origins[field.name]}" if value is not None else f"# {field.name} is unset")
    return "\n".join(lines)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url if not parts.query else parts._replace(query="***").geturl()
    name, colon, _ = user.partition(":")
    return parts._replace(netloc=f"{name}{colon and ':***'}@{host}", query="***" if parts.query else "").geturl()
