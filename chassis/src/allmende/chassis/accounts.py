"""The users of the bus: a key pair for each role and identity, and the server's configuration with what each may do.

Seeds are files of mode 0600; the configuration holds public keys only. Permissions come from the subject table
(`allmende.proto.permissions`) and are never written by hand. Never talks to the server, but for the signal to read its file again.
"""

import os
import secrets
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import nkeys  # type: ignore[import-untyped]

from allmende.chassis.errors import Misconfigured
from allmende.proto.permissions import Permissions, UserRole, permissions
from allmende.proto.subjects import SERVICES

SEED_SUFFIX = ".nk"
# Streams reserve their max_bytes (32 GiB in all); the server's own default, three quarters of the free disk, would refuse them on
# a laptop.
MAX_FILE_BYTES = 64 * 1024**3


class User(NamedTuple):
    """One user of the bus."""

    role: UserRole
    identity: str


class Account(NamedTuple):
    """A user with his key: the public half for the server, the file of the secret half for the client."""

    user: User
    public_key: str
    seed_file: Path


ADMIN = User("admin", "topology")
SERVICE_USERS = tuple(User(service, service) for service in SERVICES)


def users_of(
    clusters: Iterable[str] = (),
    people: Iterable[str] = (),
    gateways: Iterable[str] = (),
    operators: Iterable[str] = (),
    dashboards: Iterable[str] = (),
) -> tuple[User, ...]:
    """The users of a deployment: the topology command, the services, and those named."""
    return (
        ADMIN,
        *SERVICE_USERS,
        *(User("agent", name) for name in clusters),
        *(User("user", name) for name in people),
        *(User("gateway", name) for name in gateways),
        *(User("operator", name) for name in operators),
        *(User("dashboard", name) for name in dashboards),
    )


def seed_file(directory: Path, user: User) -> Path:
    """Where a user's seed is kept: `<role>.<identity>.nk`."""
    return directory / f"{user.role}.{user.identity}{SEED_SUFFIX}"


def keep(directory: Path, user: User) -> Account:
    """The account of a user; its key pair is made when there is none yet.

    Raises:
        Misconfigured: the seed file cannot be read, or others may read it.
        ValueError: the identity is not a name, or not one that the role may have.
    """
    permissions(user.role, user.identity)  # refuses a bad name before a file is named after it
    path = seed_file(directory, user)
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_secret(path, bytes(nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)))
    if path.stat().st_mode & 0o077:
        raise Misconfigured(f"{path} holds a secret that others may read: chmod 600 it, and make it anew if they did")
    try:
        pair = nkeys.from_seed(bytearray(path.read_bytes().strip()))
        public = pair.public_key.decode()
        pair.wipe()
    except (ValueError, nkeys.NkeysError) as error:
        raise Misconfigured(f"{path} does not hold an nkey seed") from error
    return Account(user, public, path)


def kept(directory: Path) -> tuple[Account, ...]:
    """All accounts whose seeds are in a directory, in the order of their names."""
    accounts: list[Account] = []
    for path in sorted(directory.glob(f"*{SEED_SUFFIX}")):
        role, _, identity = path.name.removesuffix(SEED_SUFFIX).partition(".")
        accounts.append(keep(directory, User(role, identity)))  # type: ignore[arg-type]
    return tuple(accounts)


def _write_secret(path: Path, data: bytes) -> None:
    """Write a file that nobody else may read at any moment, and that is whole or not there."""
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    part.rename(path)


class ServerConf(NamedTuple):
    """What the configuration says beside the users. `port` -1: any free one, told in `ports_dir`.

    `sync_always` False is for tests alone: a confirmed message outlives the server, but not the machine.
    """

    server_name: str
    store_dir: Path
    host: str = "127.0.0.1"
    port: int = -1
    ports_dir: Path | None = None
    version: tuple[int, int, int] = (2, 15, 0)
    sync_always: bool = True


# nats-server 2.14 knows feature flags, and refuses to start on a field it does not know.
_FEATURE_FLAGS_SINCE = (2, 14, 0)


def render(conf: ServerConf, accounts: Sequence[Account]) -> str:
    """The text of nats.conf: one account with JetStream and the users, one for the system.

    `sync_interval: always`: a confirmed message is on the disk (the default of two minutes lost one in seven after a power cut).
    `js_ack_fc_v2: false`: the form of acknowledgements does not change under a running lab when the server is upgraded; the
    permissions allow both forms.
    """
    lines = [
        f"server_name: {_quoted(conf.server_name)}",
        f"listen: {_quoted(f'{conf.host}:{conf.port}')}",
    ]
    if conf.ports_dir is not None:
        lines.append(f"ports_file_dir: {_quoted(str(conf.ports_dir))}")
    sync = "sync_interval: always, " if conf.sync_always else ""
    lines.append(f"jetstream {{ store_dir: {_quoted(str(conf.store_dir))}, {sync}max_file_store: {MAX_FILE_BYTES} }}")
    if conf.version >= _FEATURE_FLAGS_SINCE:
        lines.append("feature_flags { js_ack_fc_v2: false }")
    lines += ["system_account: SYS", "accounts {", "  SYS {}", "  ALLMENDE {", "    jetstream: enabled", "    users: ["]
    for account in accounts:
        lines.append(f"      # {account.user.role} {account.user.identity}")
        allowed = _allowed(permissions(account.user.role, account.user.identity))
        lines.append(f"      {{ nkey: {account.public_key}, permissions: {{ {allowed} }} }}")
    return "\n".join([*lines, "    ]", "  }", "}", ""])


def _allowed(allowed: Permissions) -> str:
    parts = [f"publish: {_patterns(allowed.publish)}", f"subscribe: {_patterns(allowed.subscribe)}"]
    if allowed.allow_responses:
        parts.append("allow_responses: true")
    return ", ".join(parts)


def _patterns(patterns: Sequence[str]) -> str:
    # An empty allow list would allow everything.
    if not patterns:
        return '{ deny: ">" }'
    return "{ allow: [" + ", ".join(_quoted(pattern) for pattern in patterns) + "] }"


def _quoted(text: str) -> str:
    if '"' in text or "\n" in text or "\\" in text:
        raise ValueError(f"{text!r} cannot stand in a configuration file")
    return f'"{text}"'


def write(path: Path, conf: ServerConf, accounts: Sequence[Account]) -> None:
    """Write nats.conf, whole or not at all: a server that reads it meanwhile sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_secret(path, render(conf, accounts).encode())


def reload(pid: int) -> None:
    """Have the server read its file again: users may come, go and change without a restart.

    Raises:
        Misconfigured: no such process.
    """
    try:
        os.kill(pid, signal.SIGHUP)
    except ProcessLookupError as error:
        raise Misconfigured(f"no NATS server runs as process {pid}") from error
