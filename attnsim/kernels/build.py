"""Moved."""

raise ImportError("attnsim.kernels.build is now attnsim.ptx; what compiles our own sources is attnsim.kernels.variant")
