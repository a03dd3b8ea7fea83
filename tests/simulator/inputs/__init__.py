"""Tests of clients/simulator: reading files."""
