"""Schedules: a kernel as tile operations in loops, tensors and resources."""
