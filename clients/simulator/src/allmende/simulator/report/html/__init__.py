"""One HTML page that needs no network: figures, tables and plots."""

from allmende.simulator.report.html.page import write

__all__ = ["write"]
