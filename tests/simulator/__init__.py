"""Tests of clients/simulator."""
