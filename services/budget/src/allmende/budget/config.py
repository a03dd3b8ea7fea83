"""The settings of the budget service: the operator's manual."""

from urllib.parse import urlsplit

from allmende.budget.wire import secret_of
from allmende.chassis.boot import BaseSettings


class Settings(BaseSettings, frozen=True, kw_only=True):
    """ALLMENDE_BUDGET_* in the environment, or the file named by --settings."""

    operators: tuple[str, ...] = ()
    """People who may change any budget. Everybody else: what lies below the budgets that he manages."""
    tree_file: str | None = None
    """A budget file (docs/guides/budget-file.md) that becomes the first revision, by author `budget-file`. Read only while there is
    no revision; afterwards the database is the truth and the file is not looked at again. Unset: the tree arrives by command."""
    webhook_url: str | None = None
    """Where notices are posted (docs/guides/notices.md): http:// or https://, without a user in it. Unset: nothing is sent. Never
    shown: chat services put their secret into the path."""
    webhook_secret: str | None = None
    """What posts are signed with: `whsec_` and 24 to 64 random bytes in base64. Needed with webhook_url."""

    def __post_init__(self) -> None:
        """Refuse a webhook that cannot work.

        Raises:
            ValueError: one of the two without the other, or with a fault; says neither of them.
        """
        if (self.webhook_url is None) != (self.webhook_secret is None):
            raise ValueError("webhook_url and webhook_secret go together: set both, or neither")
        if self.webhook_url is None or self.webhook_secret is None:
            return
        try:
            parts = urlsplit(self.webhook_url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and parts.username is None
        except ValueError:
            fits = False
        if not fits or not self.webhook_url.isascii() or not self.webhook_url.isprintable() or " " in self.webhook_url:
            raise ValueError("webhook_url should read like https://chat.example.org/hooks/x, without a user in it")
        secret_of(self.webhook_secret)
