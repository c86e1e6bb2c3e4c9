"""Somebody's own timings against a model's answers, and answers corrected by them."""
