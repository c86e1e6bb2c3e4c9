"""Kernels by other authors, run in the interpreter: from PTX, from a CUDA file, or from Triton.

:func:`attnsim.ptx.foreign.run.run_ptx` is the entry, and `attnsim kernels run --ptx` the same on a command line.
"""
