"""Shapes of language models, and the layers that attention stands in."""
