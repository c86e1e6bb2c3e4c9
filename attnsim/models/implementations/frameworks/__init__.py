"""Attention as frameworks launch it: one operation at a time."""
