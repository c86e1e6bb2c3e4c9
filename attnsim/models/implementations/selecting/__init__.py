"""Kernels of attention over keys selected by content: compressed keys, chosen blocks, chosen keys."""
