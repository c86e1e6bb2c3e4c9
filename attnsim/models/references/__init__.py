"""Executable definitions of every attention, in NumPy and float64."""
