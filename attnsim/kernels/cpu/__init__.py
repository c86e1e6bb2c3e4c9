"""Runs our CUDA kernels without a GPU: a SIMT interpreter on NumPy for the PTX that NVRTC emits."""
