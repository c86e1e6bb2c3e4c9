"""Measurements: published tables, the datasets extra, runs of our own."""
