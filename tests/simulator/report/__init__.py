"""Tests of the reports: what is written, and that no name can do harm."""
