"""Schedules of this project's own CUDA kernels."""
