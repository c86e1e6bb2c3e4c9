"""Replays a schedule on a GPU with SimPy."""
