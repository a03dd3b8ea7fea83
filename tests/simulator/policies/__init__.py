"""Tests of the policies to compare with: FIFO with backfill, and levels of priority."""
