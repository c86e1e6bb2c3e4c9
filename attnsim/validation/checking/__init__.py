"""Errors of the fitted model, their ranges, and the gaps that are known."""
