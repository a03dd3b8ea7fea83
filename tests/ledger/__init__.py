"""Tests of the ledger: its rules as values, its handler over a real database, its process over real servers."""
