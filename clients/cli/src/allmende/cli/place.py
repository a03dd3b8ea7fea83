"""Which lab a command talks to: a directory that `allmende up` keeps, or servers named by settings."""

import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from allmende.cli.errors import CommandFailed, Exit
from allmende.proto.ids import is_name

LAB_FILE = "lab.json"
DEFAULT_DIRECTORY = Path("~/.allmende")

CallerRole = Literal["user", "operator", "gateway", "dashboard"]


class Place(Struct, frozen=True, kw_only=True):
    """How to reach one lab, and as whom. Written by `allmende up` as lab.json beside the data."""

    nats_url: str
    seed_file: str | None
    user: str
    role: CallerRole
    clock: str = "real"
    clusters: tuple[str, ...] = ()
    output: str | None = None
    """Folder in which jobs of this machine write: JOB/ATTEMPT.REPLICA.log. None: jobs write elsewhere."""


def environment() -> Mapping[str, str]:
    """The environment of this process. Nothing else of the command line reads it."""
    return os.environ


def find(directory: Path | None, environ: Mapping[str, str]) -> Place:
    """The lab to talk to: `ALLMENDE_NATS_URL` and its companions if set, else lab.json in `directory`, as its operator or, with
    `ALLMENDE_USER`, as one of the lab's people.

    Raises:
        CommandFailed: no lab is running there, or its description cannot be read.
    """
    if directory is None and "ALLMENDE_NATS_URL" in environ:
        return _from_environment(environ)
    folder = lab_directory(directory, environ)
    try:
        place = msgspec.json.decode((folder / LAB_FILE).read_bytes(), type=Place)
    except FileNotFoundError:
        sentence = f"no lab is running in {folder}: start one with `allmende up`, or name its folder with --lab"
        raise CommandFailed(Exit.UNREACHABLE, sentence) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise CommandFailed(Exit.UNREACHABLE, f"{folder / LAB_FILE} cannot be read ({error}): start `allmende up` again") from None
    user = environ.get("ALLMENDE_USER") or place.user
    return place if user == place.user else _as_person(folder, place, user)


def _as_person(folder: Path, place: Place, user: str) -> Place:
    seed = folder / "seeds" / f"user.{user}.nk"
    if not is_name(user) or not seed.is_file():
        sentence = f"this lab has no key for {user!r} (ALLMENDE_USER): stop it and start it with `allmende up --people {user}`"
        raise CommandFailed(Exit.USAGE, sentence)
    return msgspec.structs.replace(place, user=user, role="user", seed_file=str(seed))


def lab_directory(directory: Path | None, environ: Mapping[str, str]) -> Path:
    """The folder of a lab on this machine: as given, else `ALLMENDE_LAB`, else ~/.allmende."""
    chosen = directory or Path(environ.get("ALLMENDE_LAB") or DEFAULT_DIRECTORY)
    return chosen.expanduser().absolute()


def write(folder: Path, place: Place) -> None:
    """Write lab.json so that a reader sees the old one or the new one, never half."""
    draft = folder / (LAB_FILE + ".new")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(place)))
    draft.replace(folder / LAB_FILE)


def person() -> str:
    """The name of whoever is logged in, in the form that a subject takes: `Ann.Smith` becomes `ann-smith`."""
    name = re.sub(r"[^a-z0-9_-]+", "-", getpass.getuser().lower()).strip("-_")[:63]
    return name if is_name(name) else "somebody"


def _from_environment(environ: Mapping[str, str]) -> Place:
    try:
        role = msgspec.convert(environ.get("ALLMENDE_ROLE", "user"), CallerRole)
    except msgspec.ValidationError:
        sentence = f"ALLMENDE_ROLE is {environ['ALLMENDE_ROLE']!r}; it must be user, operator, gateway or dashboard"
        raise CommandFailed(Exit.USAGE, sentence) from None
    return Place(
        nats_url=environ["ALLMENDE_NATS_URL"],
        seed_file=environ.get("ALLMENDE_NATS_SEED_FILE"),
        user=environ.get("ALLMENDE_USER") or person(),
        role=role,
        clock=environ.get("ALLMENDE_CLOCK", "real"),
    )
