"""Kernels on a real GPU: launches, timing, measurements, and checks of the machine."""
