"""The settings of the budget service: the operator's manual."""

from allmende.chassis.boot import BaseSettings


class Settings(BaseSettings, frozen=True, kw_only=True):
    """ALLMENDE_BUDGET_* in the environment, or the file named by --settings."""

    operators: tuple[str, ...] = ()
    """People who may change any budget. Everybody else: what lies below the budgets that he manages."""
    tree_file: str | None = None
    """A budget file (docs/guides/budget-file.md) that becomes the first revision, by author `budget-file`. Read only while there is
    no revision; afterwards the database is the truth and the file is not looked at again. Unset: the tree arrives by command."""
