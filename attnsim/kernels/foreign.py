"""Moved."""

raise ImportError("attnsim.kernels.foreign is now attnsim.ptx.foreign")
