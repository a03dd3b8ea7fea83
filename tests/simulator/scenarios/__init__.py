"""Tests of clients/simulator: made-up labs."""
