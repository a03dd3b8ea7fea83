"""Tests of clients/cli: words and tables, the place of a lab, the demo's plan and verdict, and a whole lab."""
