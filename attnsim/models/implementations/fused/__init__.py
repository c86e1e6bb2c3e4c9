"""Parts of fused kernels."""
