"""Tests of the chassis, with what they share."""
