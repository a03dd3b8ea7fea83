"""What there is to choose from: scenarios, and the settings of each policy."""

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from allmende.simulator import scenarios as catalog
from allmende.simulator.command import overrides
from allmende.simulator.policies.offered import POLICIES

# Through a pipe nothing is folded: programs such as grep look at lines.
PIPE_WIDTH = 10_000


def show(*, scenarios: bool, settings: bool, as_json: bool) -> None:
    """Print the lists that were asked for."""
    if as_json:
        said: dict[str, object] = {}
        if scenarios:
            said["scenarios"] = [{"name": name, "sentence": sentence} for name, sentence in catalog.names()]
        if settings:
            said["settings"] = {policy: [each._asdict() for each in overrides.listed(policy)] for policy in POLICIES}
        typer.echo(msgspec.json.format(msgspec.json.encode(said), indent=2).decode())
        return
    out = Console(width=None if Console().is_terminal else PIPE_WIDTH, markup=False, highlight=False)
    if scenarios:
        _table(out, ("SCENARIO", ""), catalog.names())
    for policy in POLICIES if settings else ():
        _table(out, (f"SETTINGS OF {policy}", "DEFAULT", ""), overrides.listed(policy))


def _table(out: Console, heads: tuple[str, ...], rows: list[tuple[str, str]] | list[overrides.Setting]) -> None:
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)
    out.print()
