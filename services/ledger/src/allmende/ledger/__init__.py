"""Usage ticks become postings, standings, statements and reports."""
