"""Migrations: SQL files applied once each, in order, all in one transaction under a lock, and remembered with their checksum.

`NNN_name.sql` runs before the new code starts and must suit the old code too; `NNN_name.post.sql` runs when no old code is left
(`migrate --post`). The chassis' own tables come first, into the service's schema. A file never changes once it was applied.
"""

import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

from allmende.chassis.db import Database, Transaction
from allmende.chassis.errors import Misconfigured

CHASSIS = "allmende.chassis.migrations"
_FILE = re.compile(r"(\d{3})_[a-z0-9_]+(\.post)?\.sql\Z")

_TABLE = """
CREATE TABLE IF NOT EXISTS migration (
    origin text NOT NULL,
    number text NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (origin, number)
)
"""


class Migration(NamedTuple):
    """One file. `post`: only when no old code is left."""

    origin: str
    number: str
    name: str
    post: bool
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def load_migrations(package: str) -> Sequence[Migration]:
    """The migrations of a package (`allmende.ledger.migrations`), by number; none where the folder is missing.

    Raises:
        Misconfigured: a file's name or a number that is there twice.
    """
    parent, _, folder = package.rpartition(".")
    root = files(parent) / folder
    found: dict[str, Migration] = {}
    for entry in sorted(root.iterdir(), key=lambda entry: entry.name) if root.is_dir() else ():
        if not entry.name.endswith(".sql"):
            continue
        match = _FILE.match(entry.name)
        if match is None:
            raise Misconfigured(f"migration {entry.name} of {package} should be called like 001_what_it_does.sql")
        if match[1] in found:
            raise Misconfigured(f"migration {match[1]} of {package} is there twice")
        found[match[1]] = Migration(package, match[1], entry.name, match[2] is not None, entry.read_text(encoding="utf-8"))
    return list(found.values())


async def migrate(db: Database, service: str, *, post: bool = False) -> Sequence[str]:
    """Apply what is missing of the chassis' and a service's migrations; returns the names of what was applied.

    Raises:
        Misconfigured: a migration was changed after it was applied, or its SQL does not fit.
        Transient: the database cannot be reached; nothing was applied.
    """
    return await apply(db, [*load_migrations(CHASSIS), *load_migrations(f"allmende.{service}.migrations")], post=post)


async def apply(db: Database, migrations: Sequence[Migration], *, post: bool = False) -> Sequence[str]:
    """Apply what is missing of these migrations, all or nothing (see `migrate`)."""
    async with db.transaction() as tx:
        await tx.lock("migrate")
        # Asked first, because CREATE SCHEMA IF NOT EXISTS wants the right to create one even where it exists.
        if await tx.connection.fetchval("SELECT to_regnamespace($1)", f'"{db.schema}"') is None:
            await tx.connection.execute(f'CREATE SCHEMA "{db.schema}"')
        await tx.connection.execute(_TABLE)
        rows = await tx.connection.fetch("SELECT origin, number, checksum FROM migration")
        applied = {(row["origin"], row["number"]): row["checksum"] for row in rows}
        names = []
        for migration in migrations:
            known = applied.get((migration.origin, migration.number))
            if known is None and (post or not migration.post):
                await _apply_one(tx, migration)
                names.append(migration.name)
            elif known is not None and known != migration.checksum:
                raise Misconfigured(
                    f"migration {migration.number} was changed after it was applied ({migration.name}): add a new one"
                )
        return names


async def _apply_one(tx: Transaction, migration: Migration) -> None:
    await tx.connection.execute(migration.sql)
    await tx.connection.execute(
        "INSERT INTO migration (origin, number, name, checksum) VALUES ($1, $2, $3, $4)",
        migration.origin,
        migration.number,
        migration.name,
        migration.checksum,
    )
