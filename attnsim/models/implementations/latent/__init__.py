"""Kernels that attend a latent cache."""
