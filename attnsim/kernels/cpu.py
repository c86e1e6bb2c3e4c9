"""Moved."""

raise ImportError("attnsim.kernels.cpu is now attnsim.ptx")
