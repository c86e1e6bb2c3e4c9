"""Answers held against each other: GPUs, algorithms, tiles and changes, by one ratio with its 90 % range."""
