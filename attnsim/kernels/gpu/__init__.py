"""Kernels on a real GPU: launching, timing and measuring them, and what of the machine that needs."""
