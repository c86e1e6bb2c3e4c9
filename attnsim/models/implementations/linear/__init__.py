"""Linear attention with gates: the kernels of flash-linear-attention, FlashKDA, FlashInfer and Mamba."""
