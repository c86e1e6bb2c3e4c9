"""Kernels that attend to what content selects: compressed keys, chosen blocks, chosen keys."""
