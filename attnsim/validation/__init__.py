"""Compares predictions with measurements and publications: fits, error tables, trust."""
