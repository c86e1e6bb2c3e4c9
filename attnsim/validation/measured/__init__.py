"""Measurements: published tables, the extra `datasets`, and our own runs."""
