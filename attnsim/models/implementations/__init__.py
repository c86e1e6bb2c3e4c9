"""Implementations that can be imitated: one file for each library or project."""
