"""Tests of the admission service: rules first, then rows, then the process over real servers."""
