"""Tests of the figures: hand-computed histories, and long random ones."""
