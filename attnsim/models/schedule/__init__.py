"""How a kernel is written down: tile operations in loops, tensors, resources."""
