"""Tests of the tree of budgets: its rules, its file, its service."""
