"""Errors of the fitted model, their ranges, and the known gaps."""
