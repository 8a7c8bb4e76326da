"""Fixtures that every layer may use. Fixtures of one layer live in that layer's own conftest."""
