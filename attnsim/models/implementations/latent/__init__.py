"""Kernels of attention over a latent cache."""
