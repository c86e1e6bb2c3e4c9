"""Measurements on a GPU, and readers of their records."""
