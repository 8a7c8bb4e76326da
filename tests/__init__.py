"""Tests, by layer; see tests/run for the order in which they run."""
