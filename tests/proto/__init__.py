"""Tests of the words every service shares, and of the rules that two services must agree on."""
